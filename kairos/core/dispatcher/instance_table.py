"""Table of instances for decisions, as columns for arithmetic over all of them.

Not in the paper.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kairos.core.dispatcher.demand import Floats, Ints
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.speed import StepPace
from kairos.core.model import Instance

_NONE: tuple[Sequence[Instance], Ints] = (), np.zeros(0, dtype=np.intp)
_BUDGET = 2048  # prompt tokens of a step, if the engine does not report them


class InstanceTable:
    """Table with a row per instance, rewritten when the ledger reports a change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._row_of: dict[str, int] = {}
        self._ids: list[str] = []  # by row
        # Cached rows of the instances last asked for, of those before, and of single instances.
        self._asked: tuple[Sequence[Instance], Ints] = _NONE
        self._asked_before: tuple[Sequence[Instance], Ints] = _NONE
        self._alone: dict[str, Ints] = {}
        self._changes = 0  # change of the ledger up to which the rows are current
        self._health = -1, 0.0  # the same for the health, and until when it is valid
        self._paces: list[StepPace] = []
        self.versions = np.zeros(0, dtype=np.int64)
        self._kinds = np.zeros(0, dtype=np.intp)  # indices in `_paces`
        # Calls in flight, KV memory (`inf`: unknown), slowness relative to its kind, unseen KV
        # memory, whether it is suspended, mean tokens that a call leaves free in its last block,
        # share of a step's budget used by prompts under way, and until when that is valid.
        self._values = np.zeros((8, 0))
        self._any_suspended = False
        # Time per answer token with one more call, the increase by that call, and time to the first
        # token of an empty prompt.
        self._speeds = np.zeros((3, 0))
        # By kind: `at_zero`, `slope` and `least` of both lines.
        self._token_lines, self._prompt_lines = np.zeros((1, 3)), np.zeros((1, 3))

    def rows(self, instances: Sequence[Instance]) -> Ints:
        """Return the rows of present instances, brought up to date."""
        if self._changes != self._ledger.changes:
            for instance_id in self._ledger.changed_since(self._changes):
                if instance_id in self._ledger.instances:
                    self._write(self._ledger.instances[instance_id])
            self._changes = self._ledger.changes
            self._write_speeds()
        if len(instances) == 1:  # does not replace the cached rows of larger sets
            return self._row_alone(instances[0].id)
        if instances is not self._asked[0] and instances != self._asked[0]:
            self._asked, self._asked_before = self._asked_before, self._asked
        if instances is not self._asked[0] and instances != self._asked[0]:
            rows = np.array([self._row_of[each.id] for each in instances], dtype=np.intp)
            self._asked = list(instances), rows
        return self._asked[1]

    def _row_alone(self, instance_id: str) -> Ints:
        found = self._alone.get(instance_id)
        if found is None:
            found = np.array([self._row_of[instance_id]], dtype=np.intp)
            self._alone[instance_id] = found
        return found

    def row(self, instance_id: str) -> int | None:
        """Return the row of an instance that was passed to `rows` before, else None."""
        return self._row_of.get(instance_id)

    def running(self, rows: Ints) -> Floats:
        """Return the number of calls in flight."""
        running: Floats = self._values[0].take(rows)
        return running

    def capacities(self, rows: Ints, at: int) -> Floats:
        """Return the tokens available for calls.

        Unlimited if nothing runs there: a call that may not fit in the end will fit nowhere better.
        """
        self.renew_health(at)
        running, kv_tokens, _, unseen = self._values[:4].take(rows, axis=1)
        capacities: Floats = np.where(running > 0, kv_tokens - unseen, np.inf)
        return capacities

    def unfilled(self, rows: Ints) -> Floats:
        """Return the mean tokens that a call leaves free in its last block."""
        unfilled: Floats = self._values[5].take(rows)
        return unfilled

    def computing(self, rows: Ints, at: int) -> Floats:
        """Return the tokens of prompts under way, as a share of a step's budget."""
        # The values expire when prompts are assumed to be computed.
        for row in rows[self._values[7].take(rows) <= at].tolist():
            self._write_computing(row, at)
        computing: Floats = self._values[6].take(rows)
        return computing

    def any_suspended(self, at: int) -> bool:
        self.renew_health(at)
        return self._any_suspended

    def suspended(self, rows: Ints, at: int) -> npt.NDArray[np.bool_]:
        self.renew_health(at)
        suspended: npt.NDArray[np.bool_] = self._values[4].take(rows) > 0
        return suspended

    def token_us(self, rows: Ints) -> Floats:
        """Return the time per token of an answer with one more call."""
        token_us: Floats = self._speeds[0].take(rows)
        return token_us

    def token_slope_us(self, rows: Ints) -> Floats:
        """Return by how much one more call lengthens the time per token."""
        slope_us: Floats = self._speeds[1].take(rows)
        return slope_us

    def begins_us(self, rows: Ints) -> Floats:
        """Return the time to the first token of a fully cached prompt."""
        begins_us: Floats = self._speeds[2].take(rows)
        return begins_us

    def compute_us(self, rows: Ints, tokens: Floats) -> Floats:
        """Return what this many prompt tokens add to the time to the first token."""
        prompt = self._of_each(self._prompt_lines)
        if prompt.ndim > 1:
            prompt = prompt.take(rows, axis=1)
        until_us = self._values[2].take(rows) * _at(prompt, tokens)
        compute_us: Floats = until_us - self._speeds[2].take(rows)
        return compute_us

    def memory(self, rows: Ints) -> Floats:
        """Return the KV memory of each; `inf`: unknown."""
        found: Floats = self._values[1].take(rows)
        return found

    def sizes(self, rows: Ints) -> Floats:
        """Return the KV memory of each; 1 if unknown."""
        sizes = self.memory(rows)
        return np.where(sizes < np.inf, sizes, 1.0)

    def _write_speeds(self) -> None:
        """Update the speeds of all rows: each instance teaches about its whole kind."""
        if len(self._paces) != len(self._token_lines):
            self._token_lines = np.zeros((len(self._paces), 3))
            self._prompt_lines = np.zeros((len(self._paces), 3))
        for kind, pace in enumerate(self._paces):
            self._token_lines[kind] = pace.token.numbers()
            self._prompt_lines[kind] = pace.prompt.numbers()
        running, _, times = self._values[:3]
        token = self._of_each(self._token_lines)
        next_us = times * _at(token, running + 1)
        self._speeds[0] = np.maximum(1.0, next_us)
        self._speeds[1] = next_us - times * _at(token, running)
        self._speeds[2] = times * _at(self._of_each(self._prompt_lines), 0.0)

    def _of_each(self, lines: Floats) -> Floats:
        """Return the lines by row, from lines by kind; a single line if there is only one kind."""
        return lines[0] if len(lines) == 1 else lines[self._kinds].T

    def _write(self, instance: Instance) -> None:
        row = self._row_of.get(instance.id)
        if row is None:
            row = self._new_row(instance.id)
        speed = self._ledger.served.speeds[instance.id]
        kv_tokens = np.inf if instance.kv_tokens is None else instance.kv_tokens
        if kv_tokens != self._values[1, row]:
            self._health = -1, 0.0  # its unseen memory is a share of this size
        values = self._values
        values[0, row], values[1, row] = self._ledger.running(instance.id), kv_tokens
        values[2, row] = speed.times
        values[5, row] = self._ledger.unfilled_tokens(instance.id)
        values[7, row] = 0.0  # expired: computed on demand
        self._kinds[row] = self._kind(speed.pace)
        self.versions[row] = self._ledger.version(instance.id)

    def _write_computing(self, row: int, at: int) -> None:
        instance = self._ledger.instances.get(self._ids[row])
        share, until = 0.0, np.inf
        if instance is not None:
            _, share, until = computing(self._ledger, instance, at)
        self._values[6:, row] = share, until

    def renew_health(self, at: int) -> None:
        """Update the health of all instances, including status that has grown stale since."""
        health, (changes, until) = self._ledger.health, self._health
        if changes == health.changes and at <= until:
            return
        self._health = health.changes, health.stays_until(at)
        for instance_id, row in self._row_of.items():
            instance = self._ledger.instances.get(instance_id)
            # Of an instance that left, nothing is known, not even after its return.
            unseen = health.unseen_tokens(instance, at) if instance is not None else 0.0
            self._values[3:5, row] = unseen, health.is_suspended(instance_id, at)
        self._any_suspended = bool(self._values[4].any())

    def _new_row(self, instance_id: str) -> int:
        self._health = -1, 0.0
        self._asked = self._asked_before = _NONE
        self._alone.clear()
        gone = next((each for each in self._row_of if each not in self._ledger.instances), None)
        if gone is not None:
            row = self._row_of[instance_id] = self._row_of.pop(gone)
            self._ids[row] = instance_id
            return row
        row = self._row_of[instance_id] = len(self._row_of)
        self._ids.append(instance_id)
        self.versions = np.append(self.versions, 0)
        self._kinds = np.append(self._kinds, 0)
        self._values = np.append(self._values, np.zeros((8, 1)), axis=1)
        self._speeds = np.append(self._speeds, np.zeros((3, 1)), axis=1)
        return row

    def _kind(self, pace: StepPace) -> int:
        for kind, known in enumerate(self._paces):
            if known is pace:
                return kind
        if len(self._paces) > len(self._row_of):  # some belong to instances that left
            used, self._kinds = np.unique(self._kinds, return_inverse=True)
            self._paces = [self._paces[kind] for kind in used]
        self._paces.append(pace)
        return len(self._paces) - 1


def computing(ledger: Ledger, instance: Instance, at: int) -> tuple[float, float, float]:
    """Return the tokens of prompts under way, their share of a step's budget, and until when."""
    tokens, until = ledger.prompts.computing(instance.id, at)
    return tokens, tokens / (instance.max_num_batched_tokens or _BUDGET), until


def _at(lines: Floats, x: Floats | float) -> Floats:
    """See `FittedLine.at`."""
    at_zero, slope, least = lines
    y: Floats = np.maximum(at_zero + slope * x, least)
    return y
