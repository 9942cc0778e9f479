"""Expected demand of calls for KV memory over time.

The future is divided into `SLOTS` slots (kairos paper, 6); a slot counts what is used at its
beginning, and the first begins now. The first slots last `SLOT_US`. Later ones grow with the
distance, by at most a third, and the last begins in an hour, so that calls are covered to their
end. (The paper gives no width, and scans all slots that a request spans; the growing width is not
in it.) There are two estimates:

- `expected`: as in the paper. A call uses its prompt, grows by a token each `token_us`, and ends
  after the most frequent latency of its agent's calls (the mode).
- `surviving`: not in the paper. The length of an answer is a distribution, given its length so far;
  so a slot has a mean and a variance. A call that is longer than all known ones is equally likely
  to end at any time.
"""

import math
from array import array
from collections.abc import Hashable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kairos.core.dispatcher.native import KERNEL, Kernel, address
from kairos.core.learnt import Distribution, exponential_distribution
from kairos.core.model import SECOND, Instance, Request

SLOT_US = SECOND // 2
# Beginning of each slot, in units of `SLOT_US`; the same as in forecast.c.
SLOT_AT = (
    0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 31, 38, 47, 58, 72, 90, 112, 140, 175, 218, 272,
    340, 425, 531, 663, 828, 1_035, 1_293, 1_616, 2_020, 2_525, 3_156, 3_945, 4_931, 6_163,
    7_703,
)  # fmt: skip
SLOTS = len(SLOT_AT)
_GRID = 256  # points of a survival curve
_LAST = _GRID - 1.0
# After the points, a curve's row has the decay of its logarithm per further point, and two values
# that the kernel uses as bounds.
_DECAY, _ROW = _GRID, _GRID + 3
_GONE = 1e-4  # a smaller probability of survival counts as 0
_MAX_MODES = 8192  # latencies
_MAX_ROWS = 8192  # number of curves beyond which unused ones are dropped

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

SLOT_AT_US: Floats = SLOT_US * np.array(SLOT_AT, dtype=np.float64)  # from now on
_AT_US: Floats = SLOT_AT_US[:, None]

# Tokens used at the beginning of each slot, 3 x (calls or instances x) SLOTS: mean, variance, and
# the maximum, if no call had ended by then.
Future = npt.NDArray[np.float64]


class Lengths(Protocol):
    """Learnt lengths and latencies of calls."""

    def kind(self, request: Request) -> Hashable:
        """Return the key of calls that share the same estimates."""

    def completion_tokens(self, request: Request) -> Distribution | None:
        """Return the distribution of answers to calls like this; None while unknown."""

    def latency_us(self, request: Request) -> Distribution | None:
        """Return the distribution of execution latency of calls like this; None while unknown."""

    def call_us(self, request: Request) -> int:
        """Return the expected execution latency of the call, at least 1."""


def limit_of(request: Request) -> float:
    """Return the maximum tokens of its answer; `inf` if the request sets none."""
    return math.inf if request.completion_limit is None else request.completion_limit


def can_hold(instance: Instance, request: Request) -> bool:
    """Return whether the request would fit on the instance if that were empty."""
    return instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens


def mode(distribution: Distribution) -> float:
    """Return the densest point: the middle of the shortest interval with 1/8 of the sample."""
    quantiles = distribution.quantiles
    held = max(1, len(quantiles) // 8)
    widths = [quantiles[i + held] - quantiles[i] for i in range(len(quantiles) - held)]
    densest = min(range(len(widths)), key=widths.__getitem__)
    return (quantiles[densest] + quantiles[densest + held]) / 2


def expected(
    prompts: Floats,
    ages_us: Floats,
    last_us: Floats,
    token_us: float,
    slot_at_us: Floats = SLOT_AT_US,
) -> Floats:
    """Return what calls use together in each slot: equations 1 and 3 of the paper.

    In a slot as wide as several of the first ones, a call counts with its maximum at any of their
    beginnings, so that no peak is missed. `last_us`: expected latency of each call.
    """
    since_us = ages_us[:, None] + slot_at_us
    width_us = slot_at_us[1] - slot_at_us[0]
    until_us = ages_us[:, None] + np.append(slot_at_us[1:], slot_at_us[-1] + width_us) - width_us
    grown_us = np.maximum(since_us, np.minimum(until_us, last_us[:, None]))
    tokens = prompts[:, None] + grown_us / token_us
    tokens *= since_us <= last_us[:, None]
    total: Floats = tokens.sum(axis=0)
    return total


class _Row:
    users: int = 0

    def __init__(self, number: int, distribution: Distribution) -> None:
        self.number = number
        self.distribution = distribution


class Curves:
    """Survival curves: the share of answers longer than a number of tokens, one row per kind.

    `Lengths` defines the kinds; calls nothing was learnt about share a row with calls of the same
    expected length. Between the quantiles of a distribution the share falls linearly in the tokens;
    beyond the last, exponentially, by the mean excess of the top eighth. Not in the paper.
    """

    def __init__(self, kernel: Kernel | None = KERNEL) -> None:
        """Create an empty table. `kernel`: compiled code to use; None: use numpy."""
        self._kernel = kernel
        self._drawn = array("d")
        self._rows: dict[Hashable, _Row] = {}
        self._of_call: dict[str, _Row] = {}
        self._shares = np.ones((16, _ROW))
        self._widths = np.ones(16)
        self._find_columns()
        self.changes = 0
        self.forgotten = 0  # number of kinds whose row was reused for another kind

    def row(self, kind: Hashable, request: Request, known: Distribution | None) -> int:
        """Return the row for a request, redrawn if its kind's distribution has changed.

        That affects other calls of the kind in flight, too.
        """
        return self._row(kind, request, known).number

    def lock_row(self, kind: Hashable, request: Request, known: Distribution | None) -> int:
        """Return the same for a request that begins, and lock the row until it is given back."""
        row = self._row(kind, request, known)
        row.users += 1
        self._of_call[request.id] = row
        return row.number

    def unlock_row(self, request_id: str) -> None:
        self._of_call.pop(request_id).users -= 1

    def _row(self, kind: Hashable, request: Request, known: Distribution | None) -> _Row:
        key = (None, request.completion_tokens) if known is None else (kind, None)
        row = self._rows.get(key)
        distribution = (
            exponential_distribution(request.completion_tokens) if known is None else known
        )
        if row is None:
            row = self._rows[key] = _Row(self._new_number(), distribution)
            self._draw(row)
        elif row.distribution is not distribution:
            row.distribution = distribution
            self._draw(row)
        return row

    def _new_number(self) -> int:
        if len(self._rows) >= _MAX_ROWS:
            unused = next((kind for kind, row in self._rows.items() if not row.users), None)
            if unused is not None:
                self.forgotten += 1
                return self._rows.pop(unused).number
        number = len(self._rows)
        if number == len(self._widths):
            self._shares = np.concatenate([self._shares, np.ones_like(self._shares)])
            self._widths = np.concatenate([self._widths, np.ones_like(self._widths)])
            self._find_columns()
        return number

    def _find_columns(self) -> None:
        # For the kernel: addresses of the shares, row by row, and of the widths.
        self.columns = address(self._shares), address(self._widths)

    def _draw(self, row: _Row) -> None:
        self.changes += 1
        if self._kernel is None:
            self._draw_by_numpy(row)
            return
        # An attribute keeps it alive while the kernel reads it: compiled code frees a local
        # variable after its last use.
        self._drawn = array("d", row.distribution.quantiles)
        place, size = self._drawn.buffer_info()
        curve = self.columns[0] + row.number * _ROW * self._shares.itemsize
        self._widths[row.number] = self._kernel.draw(size, place, curve)

    def _draw_by_numpy(self, row: _Row) -> None:
        quantiles = np.asarray(row.distribution.quantiles)
        n, last = len(quantiles), float(quantiles[-1])
        top = quantiles[-max(1, n // 8) :]
        excess = max(float(top.mean() - top[0]), 0.05 * last, 1.0)
        width = (last + 4 * excess) / (_GRID - 1)  # tokens between two points
        points = width * np.arange(_GRID)
        shares = 1 - (np.arange(n) + 0.5) / n
        at, share = np.concatenate(((0.0,), quantiles)), np.concatenate(((1.0,), shares))
        known = np.interp(points, at, share)
        beyond = shares[-1] * np.exp(-(points - last) / excess)
        self._shares[row.number, :_GRID] = np.where(points > last, beyond, known)
        self._shares[row.number, _DECAY] = width / excess
        self._widths[row.number] = width

    def surviving(
        self,
        rows: Ints | int,
        held: Floats,
        generated: Floats | float,
        limits: Floats | float,
        token_us: Floats,
        delays_us: Floats,
    ) -> Future:
        """Return what each call will use at the beginning of each slot: 3 x calls x SLOTS.

        Args:
            rows: row of each call.
            held: tokens it uses now.
            generated: answer tokens among these.
            limits: maximum answer tokens; `inf`: no limit.
            token_us: time per token.
            delays_us: time until its answer starts to grow; it does not end before.
        """
        grown = np.maximum(0.0, _AT_US - delays_us) / token_us
        alive = self._alive(rows, generated, limits, grown)
        tokens = held + grown
        mean = alive * tokens
        variance = mean * (tokens - mean)
        future: Future = np.array([mean.T, variance.T, tokens.T])
        return future

    def together(
        self,
        rows: Ints,
        held: Floats,
        generated: Floats,
        limits: Floats,
        token_us: float,
        delays_us: Floats,
    ) -> Future:
        """Return the sum over all calls, if a token takes the same time for each: 3 x SLOTS."""
        grown = (np.maximum(0.0, _AT_US - delays_us) if delays_us.any() else _AT_US) / token_us
        alive = self._alive(rows, generated, limits, grown)
        # Moments of `held + grown`, term by term: products with columns are fast.
        one = np.ones(len(rows))
        mean = alive @ held + (alive * grown) @ one
        alive -= alive * alive
        variance = alive @ (held * held)
        alive *= grown
        variance += 2 * (alive @ held)
        alive *= grown
        variance += alive @ one
        most = held.sum() + grown.sum(axis=1) * (len(rows) / grown.shape[1])
        future: Future = np.array([mean, variance, most])
        return future

    def _alive(
        self, rows: Ints | int, generated: Floats | float, limits: Floats | float, grown: Floats
    ) -> Floats:
        """Return the probability that calls last for `grown` more tokens: SLOTS x calls."""
        begins, per_width = rows * _ROW, 1 / self._widths[rows]
        shares = self._shares.ravel()
        at = generated * per_width
        now = shares[begins + np.minimum(at, _LAST).astype(np.intp)]
        points = (generated + grown) * per_width
        then = np.minimum(points, _LAST).astype(np.intp)
        then += begins
        alive: Floats = shares.take(then, mode="clip")
        alive /= now
        points -= np.maximum(at, _LAST)
        if (points > 0).any():
            alive *= np.exp(-np.maximum(points, 0.0) * shares[begins + _DECAY])
        alive[alive < _GONE] = 0.0
        if (generated + grown[-1] >= limits).any():
            # A call in flight uses its memory until its engine reports the end.
            alive *= (generated + grown < limits) | (grown == 0)
        return alive


class TypicalLatencies:
    """Mode of each agent's latency distribution, computed once per published distribution.

    All unknown agents share one distribution.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        # By `id` of the distribution, which is stored to keep it alive.
        self._modes: dict[int, tuple[Distribution, float]] = {}

    def typical_us(self, request: Request) -> float:
        """Return the most frequent latency of calls like this one (kairos paper, 6)."""
        known = self._lengths.latency_us(request)
        if known is None:
            return self._lengths.call_us(request)
        found = self._modes.get(id(known))
        if found is None:
            if len(self._modes) >= _MAX_MODES:
                self._modes.clear()
            found = self._modes[id(known)] = known, mode(known)
        return found[1]
