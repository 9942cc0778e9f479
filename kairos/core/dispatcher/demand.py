"""How much KV memory calls will need, and for how long.

The future is cut into `SLOTS` slots (kairos paper, 6); of a slot counts what is held at its
beginning, and the first begins now. The first are of `SLOT_US`. Later ones widen with the distance,
by a third at most, and the last begins in an hour: so all of a call is looked at. (The paper names
no width, and scans all that a request spans; widening is not in it.) Two ways to expect it:

- `expected`: the paper's. A call holds its prompt, grows by a token each `token_us`, and is gone
  once it has taken the time that calls of its agent take most often (the mode).
- `surviving`: ours. How long an answer will be is a distribution, given how long it is already; so
  a slot has a mean and a variance. A call that outlives all that is known ends at any time alike.
"""

import math
from array import array
from collections.abc import Hashable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kairos.core.dispatcher.native import KERNEL, Kernel, address
from kairos.core.learnt import Distribution, exponential
from kairos.core.model import SECOND, Instance, Request

SLOT_US = SECOND // 2
# When slots begin, in `SLOT_US`. forecast.c has the same.
SLOT_AT = (
    *(
        0,
        1,
        2,
        3,
        4,
        6,
        8,
        10,
        13,
        16,
        20,
        25,
        31,
        38,
        47,
        58,
        72,
        90,
        112,
        140,
        175,
        218,
        272,
        340,
    ),
    *(425, 531, 663, 828, 1_035, 1_293, 1_616, 2_020, 2_525, 3_156, 3_945, 4_931, 6_163, 7_703),
)
SLOTS = len(SLOT_AT)
_GRID = 256  # points at which a survival curve is known
_LAST = _GRID - 1.0
# Behind them in a curve's row: how much its logarithm falls at each further point, and what bounds
# the kernel's view of it.
_DECAY, _ROW = _GRID, _GRID + 3
_GONE = 1e-4  # less likely to be there counts as gone
_MAX_ROWS = 8192  # curves that are kept while no call in flight needs them

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

SLOT_AT_US: Floats = SLOT_US * np.array(SLOT_AT, dtype=np.float64)  # from now on
_AT_US: Floats = SLOT_AT_US[:, None]

# Tokens held at the beginning of each slot, 3 x (calls or instances x) SLOTS: mean, variance, and
# what it would be if nobody had ended by then.
Future = npt.NDArray[np.float64]


class Lengths(Protocol):
    """What was learnt of how long calls are."""

    def kind(self, request: Request) -> Hashable:
        """Of calls of one kind the same is known."""

    def completion_tokens(self, request: Request) -> Distribution | None:
        """Of the answers to calls like this one; None while nothing is known."""

    def latency_us(self, request: Request) -> Distribution | None:
        """Of the execution of calls like this one; None while nothing is known."""

    def call_us(self, request: Request) -> int:
        """Expected execution latency of the call, at least 1."""


def limit_of(request: Request) -> float:
    """Tokens that its answer has at most; `inf`: nobody said."""
    return math.inf if request.completion_limit is None else request.completion_limit


def can_hold(instance: Instance, request: Request) -> bool:
    """Whether the request would fit there if nothing else ran."""
    return instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens


def mode(distribution: Distribution) -> float:
    """Where a sample is densest: the middle of the shortest stretch that holds an eighth of it."""
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
    """What calls hold together, slot by slot: equations 1 and 3 of the paper.

    Prompts in tokens, how long ago each call was dispatched, and how long it is taken to last;
    `slot_at_us`: when slots begin, from now on. In a slot as wide as several of the first a call
    counts with the most that it has at any of their beginnings, so that no peak is overlooked.
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
    """Survival curves, a row for each kind of calls: the share of answers that are longer than so
    many tokens. A kind is what `Lengths` takes for one; those of which nothing was learnt are one
    by what their calls expect, however many there are.

    Between the quantiles of a distribution the share falls linearly in the tokens; beyond the last,
    exponentially, by the mean excess of the top eighth. Ours.
    """

    def __init__(self, kernel: Kernel | None = KERNEL) -> None:
        """`kernel`: None, numpy does its work."""
        self._kernel = kernel
        self._drawn = array("d")
        self._rows: dict[Hashable, _Row] = {}
        self._of_call: dict[str, _Row] = {}
        self._shares = np.ones((16, _ROW))
        self._widths = np.ones(16)
        self._find_columns()
        self.changes = 0
        self.forgotten = 0  # kinds of which the row is another's now

    def row(self, kind: Hashable, request: Request, known: Distribution | None) -> int:
        """The row for a request like this one; from now on it is by what is known now of its kind,
        for others of its kind in flight, too."""
        return self._row(kind, request, known).number

    def take(self, kind: Hashable, request: Request, known: Distribution | None) -> int:
        """The same for a request that begins: the row is its until it is given back."""
        row = self._row(kind, request, known)
        row.users += 1
        self._of_call[request.id] = row
        return row.number

    def give_back(self, request_id: str) -> None:
        self._of_call.pop(request_id).users -= 1

    def _row(self, kind: Hashable, request: Request, known: Distribution | None) -> _Row:
        key = (None, request.completion_tokens) if known is None else (kind, None)
        row = self._rows.get(key)
        distribution = exponential(request.completion_tokens) if known is None else known
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
        # For the kernel: where the shares are, row after row, and the widths.
        self.columns = address(self._shares), address(self._widths)

    def _draw(self, row: _Row) -> None:
        self.changes += 1
        if self._kernel is None:
            self._draw_by_numpy(row)
            return
        # Held here: compiled code lets go of a local after its last use, and the kernel reads it.
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
        """What each call will hold at the beginning of each slot, the first of which is now;
        3 x calls x SLOTS.

        Of each call its row, the tokens that it holds now, how many of them are of its answer, how
        many that has at most (`inf`: no limit), how long one takes it, and how long it is until it
        grows at all: as long it is there.
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
        """The same of all calls in sum, where a token takes all of them as long: 3 x
        SLOTS."""
        grown = (np.maximum(0.0, _AT_US - delays_us) if delays_us.any() else _AT_US) / token_us
        alive = self._alive(rows, generated, limits, grown)
        # Of `held + grown` and its square, term by term: products with columns are what is quick.
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
        """The probability that each call goes on after so many tokens more: SLOTS x calls."""
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
            # Who is there, and has not ended, holds its memory until its engine says otherwise.
            alive *= (generated + grown < limits) | (grown == 0)
        return alive
