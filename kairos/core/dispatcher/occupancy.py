"""Forecast of the KV memory in use on each instance, by slot.

It is derived from the calls in flight, and cached until these change or half a slot has passed.
"""

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

# Share of the memory left free in the slots of the next second, since steps take time.
FREE = 0.02
_NEXT_SECOND = SLOT_AT_US < SECOND
RENEWED_US = SLOT_US // 2  # age at which forecasts are derived again
FEW = 8  # `BySurvival` approximates while fewer than one in this many calls has changed
_ZEROS = np.zeros(SLOTS)
NOTHING: Future = np.zeros((3, SLOTS))
Derive = Callable[[Ledger, Instance, int], Future]
TokenUs = Callable[[Ledger, Instance], float]  # time per token on the instance


def measured_token_us(ledger: Ledger, instance: Instance) -> float:
    """Return the measured time per token."""
    return ledger.token_us(instance.id)


class Occupancy:
    """Forecasts of all instances, by one method of derivation."""

    def __init__(
        self, ledger: Ledger, derive: Derive, token_us: TokenUs = measured_token_us
    ) -> None:
        self.ledger, self._derive, self._token_us = ledger, derive, token_us
        self.table = InstanceTable(ledger)
        # By row of the table: version and time of the forecast, growth, and the forecast.
        self._versions = np.zeros(0, dtype=np.int64)
        self._derived_at = np.zeros(0, dtype=np.int64)
        self._growth = np.zeros(0)  # tokens per µs, if no call ends
        self.forecasts: Future = np.zeros((3, 0, SLOTS))
        # Last query (rows, state of the ledger and time) and its result.
        self._last: tuple[Ints | None, tuple[int, int], Future] = None, (0, 0), NOTHING

    def of(self, instances: Sequence[Instance], at: int) -> Future:
        """Return the forecasts plus the growth of calls since: 3 x instances x SLOTS."""
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
        """Derive forecasts that are outdated again."""
        table = self.table
        for place in self._stale(instances, at):
            row = table.row(instances[place].id)
            assert row is not None
            self._versions[row], self._derived_at[row] = table.versions[row], at
            self._write(row, instances[place], at)

    def _stale(self, instances: Sequence[Instance], at: int) -> list[int]:
        """Return the indices of instances with outdated forecasts."""
        rows = self.table.rows(instances)
        self._make_rows()
        is_old = self._versions.take(rows) != self.table.versions.take(rows)
        is_old |= at - self._derived_at.take(rows) >= RENEWED_US
        return np.flatnonzero(is_old).tolist()

    def _make_rows(self) -> None:
        """Add missing rows, so that there are as many as in the table."""
        missing = len(self.table.versions) - len(self._versions)
        if missing:
            none = np.zeros(missing, dtype=np.int64)  # version 0, which no instance has
            self._versions = np.concatenate([self._versions, none])
            self._derived_at = np.concatenate([self._derived_at, none])
            self._growth = np.concatenate([self._growth, np.zeros(missing)])
            more = np.zeros((3, missing, SLOTS))
            self.forecasts = np.concatenate([self.forecasts, more], axis=1)

    def _write(self, row: int, instance: Instance, at: int) -> None:
        self.forecasts[:, row] = self._derive(self.ledger, instance, at)
        running = self.ledger.running(instance.id)
        self._growth[row] = running / self._token_us(self.ledger, instance) if running else 0.0


def by_modes(
    ledger: Ledger, instance: Instance, at: int, slot_at_us: Floats = SLOT_AT_US
) -> Future:
    """Return the paper's forecast, which has no variance."""
    flight = ledger.flight(instance.id)
    if not flight:
        return NOTHING
    token_us = paper_token_us(ledger, instance)
    means = expected(flight.prompts, flight.ages_us(at), flight.lasts_us, token_us, slot_at_us)
    return np.array([means, _ZEROS, means])


def paper_token_us(ledger: Ledger, instance: Instance) -> float:
    """Return the time per token of the engine's profile, or the measured one without a profile."""
    return instance.token_us or ledger.token_us(instance.id)


class _Derived:
    """Forecast for the calls on one instance, as derived at some time."""

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
        # State of the flight at that time; the last are the tokens of all ended answers.
        self.changes: Final = changes
        self.calls: Final = calls
        self.prompt_tokens: Final = prompt_tokens
        self.ended_tokens: Final = ended_tokens
        # Share of prompt tokens that counts: shared prefixes are deducted from all calls evenly.
        self.share: Final = share
        self.unfilled: Final = unfilled  # tokens that each call leaves free in its last block
        self.tokens_per_us: Final = tokens_per_us  # growth of all answers together
        self.held: Final = held
        self.held_now: Final = held_now  # tokens in use at that time

    def is_good(self, flight: InFlightTable, at: int) -> bool:
        changes = flight.changes - self.changes
        return (
            flight is self.flight
            and at - self.at < RENEWED_US
            and (changes == 0 or FEW * changes < len(flight))
        )

    def times(self, at: int) -> float:
        """Return the ratio of current to derived tokens, given the calls begun and ended since."""
        flight = self.flight
        more = self.share * (flight.prompt_tokens - self.prompt_tokens)
        more += self.unfilled * (len(flight) - self.calls)
        more += self.tokens_per_us * (at - self.at)
        more -= flight.ended_tokens - self.ended_tokens
        return max(0.0, 1 + more / max(1.0, self.held_now))


class BySurvival:
    """Forecast by the learnt lengths of answers, given their current length. Not in the paper.

    It includes memory retained for calls that may come back. While only a few of an instance's
    calls have changed since the derivation, calls that began, grew or ended are assumed to be like
    the others: they add or remove their tokens now, and a proportional share in each slot. That
    takes a tenth of the time.
    """

    def __init__(self) -> None:
        self._derived: dict[str, _Derived] = {}  # by instance id

    def __call__(self, ledger: Ledger, instance: Instance, at: int) -> Future:
        # Unused tokens retained for calls that are likely to come back.
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
        """Return a current forecast for an instance with calls in flight."""
        derived = self._derived.get(instance.id)
        if derived is None:  # drop the forecasts of instances that left
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
    """Return the forecast for the request alone, if it were dispatched now: 3 x instances x SLOTS.

    Not in the paper. `held` and the times are by instance: tokens that it would use from the
    beginning, time per token, and time to the first token.
    """
    curve, limit = ledger.curve_of(request), limit_of(request)
    return ledger.curves.surviving(curve, held, 0.0, limit, token_us, delays_us)
