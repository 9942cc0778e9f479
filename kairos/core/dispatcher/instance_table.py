"""What decisions need to know of instances, as columns, for arithmetic over all of them at once.
Ours."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kairos.core.dispatcher.demand import Floats, Ints
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.speed import StepPace
from kairos.core.model import Instance

_NONE: tuple[Sequence[Instance], Ints] = (), np.zeros(0, dtype=np.intp)
_BUDGET = 2048  # prompt tokens of a step, where it is not told


class InstanceTable:
    """A row for each instance, written anew when the ledger says that it has changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._row_of: dict[str, int] = {}
        self._ids: list[str] = []  # by row
        # Rows: of the instances asked for last, of others before that, and of one alone, by its id.
        self._asked: tuple[Sequence[Instance], Ints] = _NONE
        self._asked_before: tuple[Sequence[Instance], Ints] = _NONE
        self._alone: dict[str, Ints] = {}
        self._changes = 0  # of the ledger, that the rows have
        self._health = -1, 0.0  # changes that the rows have, until when these stay
        self._paces: list[StepPace] = []
        self.versions = np.zeros(0, dtype=np.int64)
        self._kinds = np.zeros(0, dtype=np.intp)  # places in `_paces`
        # Calls in flight, KV memory (`inf`: not known), times as slow as its kind; KV memory that
        # is not seen, whether it is suspended; tokens that a call leaves free of its last block;
        # share of a step's budget that prompts under way take, and until when that is so.
        self._values = np.zeros((8, 0))
        self._any_suspended = False
        # Time per token of an answer with one call more, how much longer that is, time to the first
        # token of no prompt at all.
        self._speeds = np.zeros((3, 0))
        # By kind, of both lines `at_zero`, `slope` and `least`.
        self._token_lines, self._prompt_lines = np.zeros((1, 3)), np.zeros((1, 3))

    def rows(self, instances: Sequence[Instance]) -> Ints:
        """Of instances that are here; up to date."""
        if self._changes != self._ledger.changes:
            for instance_id in self._ledger.changed_since(self._changes):
                if instance_id in self._ledger.instances:
                    self._write(self._ledger.instances[instance_id])
            self._changes = self._ledger.changes
            self._write_speeds()
        if len(instances) == 1:  # beside others, that are asked for again
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
        """Of an instance, once `rows` was asked for it."""
        return self._row_of.get(instance_id)

    def running(self, rows: Ints) -> Floats:
        """Calls in flight."""
        running: Floats = self._values[0].take(rows)
        return running

    def capacities(self, rows: Ints, at: int) -> Floats:
        """Tokens for calls. One on which nothing runs takes a call that may not fit in the end: it
        will fit nowhere better."""
        self.renew_health(at)
        running, kv_tokens, _, unseen = self._values[:4].take(rows, axis=1)
        capacities: Floats = np.where(running > 0, kv_tokens - unseen, np.inf)
        return capacities

    def unfilled(self, rows: Ints) -> Floats:
        """Tokens that a call leaves free of its last block, on average."""
        unfilled: Floats = self._values[5].take(rows)
        return unfilled

    def computing(self, rows: Ints, at: int) -> Floats:
        """Tokens of prompts under way, as a share of what a step takes."""
        # That changes by itself, as they are taken for computed.
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
        """How long a token of each answer takes with one call more."""
        token_us: Floats = self._speeds[0].take(rows)
        return token_us

    def token_slope_us(self, rows: Ints) -> Floats:
        """How much longer a token takes with one call more."""
        slope_us: Floats = self._speeds[1].take(rows)
        return slope_us

    def begins_us(self, rows: Ints) -> Floats:
        """Time to the first token, were all of the prompt cached."""
        begins_us: Floats = self._speeds[2].take(rows)
        return begins_us

    def compute_us(self, rows: Ints, tokens: Floats) -> Floats:
        """What so many tokens of a prompt add to the time to the first token."""
        prompt = self._of_each(self._prompt_lines)
        if prompt.ndim > 1:
            prompt = prompt.take(rows, axis=1)
        until_us = self._values[2].take(rows) * _at(prompt, tokens)
        compute_us: Floats = until_us - self._speeds[2].take(rows)
        return compute_us

    def memory(self, rows: Ints) -> Floats:
        """Return the KV memory of each; `inf`: not known."""
        found: Floats = self._values[1].take(rows)
        return found

    def sizes(self, rows: Ints) -> Floats:
        """KV memory; 1 where it is not known."""
        sizes = self.memory(rows)
        return np.where(sizes < np.inf, sizes, 1.0)

    def _write_speeds(self) -> None:
        """All anew: what one instance teaches is known of all of its kind."""
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
        """By row, from lines by kind, what `_at` needs; of the only kind alone, if there is one."""
        return lines[0] if len(lines) == 1 else lines[self._kinds].T

    def _write(self, instance: Instance) -> None:
        row = self._row_of.get(instance.id)
        if row is None:
            row = self._new_row(instance.id)
        speed = self._ledger.served.speeds[instance.id]
        kv_tokens = np.inf if instance.kv_tokens is None else instance.kv_tokens
        if kv_tokens != self._values[1, row]:
            self._health = -1, 0.0  # of which what is not seen is a share
        values = self._values
        values[0, row], values[1, row] = self._ledger.running(instance.id), kv_tokens
        values[2, row] = speed.times
        values[5, row] = self._ledger.unfilled_tokens(instance.id)
        values[7, row] = 0.0  # to be written when it is asked for
        self._kinds[row] = self._kind(speed.pace)
        self.versions[row] = self._ledger.version(instance.id)

    def _write_computing(self, row: int, at: int) -> None:
        instance = self._ledger.instances.get(self._ids[row])
        share, until = 0.0, np.inf
        if instance is not None:
            _, share, until = computing(self._ledger, instance, at)
        self._values[6:, row] = share, until

    def renew_health(self, at: int) -> None:
        """What instances say of themselves grows stale by itself."""
        health, (changes, until) = self._ledger.health, self._health
        if changes == health.changes and at <= until:
            return
        self._health = health.changes, health.stays_until(at)
        for instance_id, row in self._row_of.items():
            instance = self._ledger.instances.get(instance_id)
            # Of one that left nothing is known, nor will be when it comes back.
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
        if len(self._paces) > len(self._row_of):  # some were of instances that left
            used, self._kinds = np.unique(self._kinds, return_inverse=True)
            self._paces = [self._paces[kind] for kind in used]
        self._paces.append(pace)
        return len(self._paces) - 1


def computing(ledger: Ledger, instance: Instance, at: int) -> tuple[float, float, float]:
    """Tokens of prompts under way, the share of a step's budget that they take, and until when."""
    tokens, until = ledger.prompts.computing(instance.id, at)
    return tokens, tokens / (instance.max_num_batched_tokens or _BUDGET), until


def _at(lines: Floats, x: Floats | float) -> Floats:
    """See `FittedLine.at`."""
    at_zero, slope, least = lines
    y: Floats = np.maximum(at_zero + slope * x, least)
    return y
