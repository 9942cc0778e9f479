"""Table of the calls in flight on one instance, for arithmetic over all of them."""

import numpy as np

from kairos.core.dispatcher.demand import Floats, Ints
from kairos.core.dispatcher.native import CALL, address

_CURVE = 7
_WIDTH = CALL.size // 8  # numbers of 64 bits


class InFlightTable:
    """Table with a row per call, unordered. Times in µs, sizes in tokens."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._row_of: dict[str, int] = {}
        self._values = np.zeros((8, _WIDTH))  # a row is a `CALL`
        self._find_cells()
        self.changes = 0
        self.prompt_tokens = 0.0  # sum over all calls
        self.ended_tokens = 0  # tokens of all answers that have ended so far

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self,
        request_id: str,
        *,
        curve: int,
        prompt: int,
        begun_at: int,
        lasts_us: float,
        first_at: int,
        grows_from: int,
        limit: float,
    ) -> None:
        """Add a call.

        Args:
            request_id: id of the call.
            curve: row of its survival curve.
            prompt: tokens of its prompt.
            begun_at: time of its dispatch.
            lasts_us: most frequent latency of calls like it.
            first_at: expected time of its first token.
            grows_from: time from which the answer is assumed to grow if no token is reported (not
                all answers are streamed).
            limit: maximum tokens of its answer.
        """
        row = len(self._ids)
        if row == len(self._values):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._find_cells()
        self._ids.append(request_id)
        self._row_of[request_id] = row
        CALL.pack_into(
            self._bytes, row * CALL.size,
            prompt, begun_at, lasts_us, 0, grows_from, limit, first_at, curve,
        )  # fmt: skip
        self.changes += 1
        self.prompt_tokens += prompt

    def _find_cells(self) -> None:
        # The same numbers for access one at a time: numpy takes ten times as long.
        self._bytes = self._values.ravel().data.cast("B")
        self._cells = self._bytes.cast("d")
        self.at = address(self._values)  # for the kernel

    def record_length(self, request_id: str, generated: int, at: int) -> None:
        """Record the reported length of an answer."""
        first, cells = self._row_of[request_id] * _WIDTH, self._cells
        cells[first + 3] = generated
        cells[first + 4] = cells[first + 6] = at
        self.changes += 1

    def length_recorded_at(self, request_id: str) -> float:
        """Return when the length of the answer was last reported."""
        told_at: float = self._cells[self._row_of[request_id] * _WIDTH + 4]
        return told_at

    def remove(self, request_id: str, answer: int) -> None:
        """Remove a call. `answer`: final tokens of its answer."""
        row, last = self._row_of.pop(request_id), len(self._ids) - 1
        self.changes += 1
        cells = self._cells
        self.prompt_tokens -= cells[row * _WIDTH]
        self.ended_tokens += answer
        moved = self._ids.pop()
        if row != last:
            self._ids[row] = moved
            self._row_of[moved] = row
            first, of_last = row * _WIDTH, last * _WIDTH
            cells[first : first + _WIDTH] = cells[of_last : of_last + _WIDTH]

    def all_changed(self) -> None:
        """Mark all calls as changed."""
        self.changes += len(self)

    @property
    def curves(self) -> Ints:
        curves: Ints = self._values.view(np.int64)[: len(self._ids), _CURVE]
        return curves

    @property
    def prompts(self) -> Floats:
        return self._values[: len(self._ids), 0]

    @property
    def lasts_us(self) -> Floats:
        return self._values[: len(self._ids), 2]

    @property
    def limits(self) -> Floats:
        return self._values[: len(self._ids), 5]

    @property
    def longest_prompt(self) -> float:
        """Return the tokens of the longest prompt. The table must not be empty."""
        return float(np.maximum.reduce(self.prompts))

    def delays_us(self, at: int) -> Floats:
        """Return the expected time until each answer grows."""
        delays: Floats = np.maximum(0.0, self._values[: len(self._ids), 6] - at)
        return delays

    def ages_us(self, at: int) -> Floats:
        return np.maximum(0.0, at - self._values[: len(self._ids), 1])

    def generated(self, at: int, token_us: float) -> Floats:
        """Return the tokens of each answer by now: reported ones plus the growth assumed since."""
        values = self._values[: len(self._ids)]
        told, since, limit = values[:, 3], values[:, 4], values[:, 5]
        grown: Floats = at - since
        np.maximum(0.0, grown, out=grown)
        grown /= token_us
        grown += told
        np.minimum(grown, limit, out=grown)
        return np.maximum(grown, told, out=grown)  # reported tokens count even above the limit

    def generated_tokens(self, at: int, token_us: float) -> float:
        """Return the tokens of all answers together."""
        return float(np.add.reduce(self.generated(at, token_us)))
