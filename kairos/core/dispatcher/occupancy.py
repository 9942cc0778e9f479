"""What instances are expected to hold, slot by slot: derived from what is in flight there, and kept
until that changes or half of a slot is over."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from kairos.core.dispatcher.demand import (
    SLOT_AT_US,
    SLOT_US,
    SLOTS,
    Floats,
    Future,
    Ints,
    expected,
    limit_of,
)
from kairos.core.dispatcher.in_flight import InFlightTable
from kairos.core.dispatcher.instance_table import InstanceTable
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.model import SECOND, Instance, Request

# The share of the memory that is kept free by slot: for the next second, since steps last.
FREE = 0.02
_NEXT_SECOND = SLOT_AT_US < SECOND
RENEWED_US = SLOT_US // 2  # forecasts are derived anew when they are so old
FEW = 8  # changes to less than one in so many calls are small: `BySurvival`
_ZEROS = np.zeros(SLOTS)
NOTHING: Future = np.zeros((3, SLOTS))
Derive = Callable[[Ledger, Instance, int], Future]
TokenUs = Callable[[Ledger, Instance], float]  # how long a token takes there


def measured_token_us(ledger: Ledger, instance: Instance) -> float:
    """Return how long a token takes, as measured."""
    return ledger.token_us(instance.id)


class Occupancy:
    """The forecasts of all instances, by one way to derive them."""

    def __init__(
        self, ledger: Ledger, derive: Derive, token_us: TokenUs = measured_token_us
    ) -> None:
        self.ledger, self._derive, self._token_us = ledger, derive, token_us
        self.table = InstanceTable(ledger)
        # By row of the table: of which version, when, and what was derived.
        self._versions = np.zeros(0, dtype=np.int64)
        self._derived_at = np.zeros(0, dtype=np.int64)
        self._growth = np.zeros(0)  # tokens per µs, while nobody ends
        self.forecasts: Future = np.zeros((3, 0, SLOTS))
        # What was asked last: rows, state of the ledger and instant; and the answer.
        self._last: tuple[Ints | None, tuple[int, int], Future] = None, (0, 0), NOTHING

    def of(self, instances: Sequence[Instance], at: int) -> Future:
        """Return the forecasts, as derived last, with what calls have grown by since.

        3 x instances x SLOTS.
        """
        rows, state = self.table.rows(instances), (self.ledger.changes, at)
        if rows is self._last[0] and state == self._last[1]:
            return self._last[2]
        self.renew(instances, at)
        future: Future = self.forecasts.take(rows, axis=1)
        grown = self._growth.take(rows) * (at - self._derived_at.take(rows))
        future[::2] += grown[:, None]
        if len(rows) > 1:
            self._last = rows, state, future
        return future

    def renew(self, instances: Sequence[Instance], at: int) -> None:
        """Derive anew what has changed, or is old."""
        table = self.table
        for place in self._stale(instances, at):
            row = table.row(instances[place].id)
            assert row is not None
            self._versions[row], self._derived_at[row] = table.versions[row], at
            self._write(row, instances[place], at)

    def _stale(self, instances: Sequence[Instance], at: int) -> list[int]:
        """Places among them."""
        rows = self.table.rows(instances)
        self._make_rows()
        is_old = self._versions.take(rows) != self.table.versions.take(rows)
        is_old |= at - self._derived_at.take(rows) >= RENEWED_US
        return np.flatnonzero(is_old).tolist()

    def _make_rows(self) -> None:
        """For all that the table has."""
        missing = len(self.table.versions) - len(self._versions)
        if missing:
            self._add_rows(missing)

    def _write(self, row: int, instance: Instance, at: int) -> None:
        self.forecasts[:, row] = self._derive(self.ledger, instance, at)
        running = self.ledger.running(instance.id)
        self._growth[row] = running / self._token_us(self.ledger, instance) if running else 0.0

    def _add_rows(self, count: int) -> None:
        none = np.zeros(count, dtype=np.int64)  # a version that no instance has
        self._versions = np.concatenate([self._versions, none])
        self._derived_at = np.concatenate([self._derived_at, none])
        self._growth = np.concatenate([self._growth, np.zeros(count)])
        self.forecasts = np.concatenate([self.forecasts, np.zeros((3, count, SLOTS))], axis=1)


def by_modes(
    ledger: Ledger, instance: Instance, at: int, slot_at_us: Floats = SLOT_AT_US
) -> Future:
    """The paper's: certain, so without variance."""
    flight = ledger.flight(instance.id)
    if not flight:
        return NOTHING
    token_us = paper_token_us(ledger, instance)
    means = expected(flight.prompts, flight.ages_us(at), flight.lasts_us, token_us, slot_at_us)
    return np.array([means, _ZEROS, means])


def paper_token_us(ledger: Ledger, instance: Instance) -> float:
    """The constant of the engine's profile; where there is none, as measured."""
    return instance.token_us or ledger.token_us(instance.id)


class _Derived:
    """What the calls on one instance were expected to hold, at an instant."""

    def __init__(
        self,
        at: int,
        flight: InFlightTable,
        changes: int,
        calls: int,
        prompt_tokens: float,
        ended_tokens: float,
        share: float,
        unfilled: float,
        tokens_per_us: float,
        held: Future,
        held_now: float,
    ) -> None:
        self.at: Final = at
        self.flight: Final = flight
        # Of the flight, then: changes, calls, tokens of prompts, and of answers that had ended.
        self.changes: Final = changes
        self.calls: Final = calls
        self.prompt_tokens: Final = prompt_tokens
        self.ended_tokens: Final = ended_tokens
        # Of prompts, that counts: what calls have in common is taken off all alike.
        self.share: Final = share
        self.unfilled: Final = unfilled  # tokens of its last block, of each call
        self.tokens_per_us: Final = tokens_per_us  # by which all their answers grow
        self.held: Final = held
        self.held_now: Final = held_now  # tokens, of it

    def is_good(self, flight: InFlightTable, at: int) -> bool:
        changes = flight.changes - self.changes
        return (
            flight is self.flight
            and at - self.at < RENEWED_US
            and (changes == 0 or FEW * changes < len(flight))
        )

    def times(self, at: int) -> float:
        """How many times as much is expected by now: with the calls that began since, and without
        those that ended."""
        flight = self.flight
        more = self.share * (flight.prompt_tokens - self.prompt_tokens)
        more += self.unfilled * (len(flight) - self.calls)
        more += self.tokens_per_us * (at - self.at)
        more -= flight.ended_tokens - self.ended_tokens
        return max(0.0, 1 + more / max(1.0, self.held_now))


class BySurvival:
    """Ours: by what was learnt of the lengths of answers, given how long these are; and what is
    kept for calls that may come back.

    While there were but a few changes to an instance's calls since all were looked at, what began,
    grew or ended counts as if it were like the others: as many tokens more or less now, and as
    large a share of what is expected of each slot. That takes a tenth of the time.
    """

    def __init__(self) -> None:
        self._derived: dict[str, _Derived] = {}  # by instance id

    def __call__(self, ledger: Ledger, instance: Instance, at: int) -> Future:
        # Tokens that nobody holds, but are kept for calls that are likely to come back for them.
        flight, kept = ledger.flight(instance.id), ledger.retention.kept(instance.id).by_slot(at)
        if not flight:
            return np.array([kept, _ZEROS, kept])
        derived = self.derived(ledger, instance, flight, at)
        future: Future = derived.times(at) * derived.held
        free = np.where(_NEXT_SECOND, FREE, 0.0)
        future[::2] += kept + free * (instance.kv_tokens or 0)
        return future

    def derived(
        self, ledger: Ledger, instance: Instance, flight: InFlightTable, at: int
    ) -> _Derived:
        """Of an instance on which calls are in flight, fit to be asked what is expected now."""
        derived = self._derived.get(instance.id)
        if derived is None:  # it may have come in the place of one that left
            here = ledger.instances
            self._derived = {name: each for name, each in self._derived.items() if name in here}
        if derived is None or not derived.is_good(flight, at):
            derived = self._derived[instance.id] = _derive(ledger, instance, flight, at)
        return derived


def _derive(ledger: Ledger, instance: Instance, flight: InFlightTable, at: int) -> _Derived:
    token_us = ledger.token_us(instance.id)
    share = 1 - ledger.shared_tokens(instance.id) / max(1.0, flight.prompt_tokens)
    unfilled = ledger.unfilled_tokens(instance.id)
    held, growing = _together(ledger, flight, at, token_us, share, unfilled)
    return _Derived(
        at=at,
        flight=flight,
        changes=flight.changes,
        calls=len(flight),
        prompt_tokens=flight.prompt_tokens,
        ended_tokens=flight.ended_tokens,
        share=share,
        unfilled=unfilled,
        tokens_per_us=float(growing) / token_us,
        held=held,
        held_now=float(held[0, 0]),
    )


def _together(
    ledger: Ledger, flight: InFlightTable, at: int, token_us: float, share: float, unfilled: float
) -> tuple[Future, int]:
    generated = flight.generated(at, token_us)
    held = flight.prompts * share + generated + unfilled
    delays_us = flight.delays_us(at)
    future = ledger.curves.together(
        flight.curves, held, generated, flight.limits, token_us, delays_us
    )
    return future, int(np.count_nonzero(delays_us == 0))


def of_request(
    ledger: Ledger, request: Request, held: Floats, token_us: Floats, delays_us: Floats
) -> Future:
    """Of the request alone, were it dispatched now: 3 x instances x SLOTS. Of each, the tokens that
    it would hold there from the beginning, how long one of its answer would take, and how long it
    would be until the first. Ours."""
    curve, limit = ledger.curve_of(request), limit_of(request)
    return ledger.curves.surviving(curve, held, 0.0, limit, token_us, delays_us)
