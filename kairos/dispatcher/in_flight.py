"""The calls in flight on one instance, as columns, for arithmetic over all of them at once."""

import numpy as np

from kairos.dispatcher.demand import Floats, Ints
from kairos.dispatcher.native import address

_FIELDS = ("prompt", "begun_at", "lasts_us", "generated", "grows_from", "limit", "first_at")


class InFlightTable:
    """A row for each call, in no order. Instants in µs, sizes in tokens."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._row_of: dict[str, int] = {}
        self._values = np.zeros((len(_FIELDS), 8))
        self._curves = np.zeros(8, dtype=np.intp)
        self._find_columns()
        self.changes = 0
        self.prompt_tokens = 0.0  # of all
        self.ended_tokens = 0  # of answers that have ended

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
        """`lasts_us`: what it takes most often; `first_at`: when its first token is expected;
        `grows_from`: when it is taken to have had it, should none be told (not all answers are
        streamed); `limit` of its answer."""
        row = len(self._ids)
        if row == len(self._curves):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
            self._curves = np.concatenate([self._curves, np.zeros_like(self._curves)])
            self._find_columns()
        self._ids.append(request_id)
        self._row_of[request_id] = row
        cells, stride, cell = self._cells, self._stride, row
        for value in (prompt, begun_at, lasts_us, 0, grows_from, limit, first_at):
            cells[cell] = value
            cell += stride
        self._curves[row] = curve
        self.changes += 1
        self.prompt_tokens += prompt

    def _find_columns(self) -> None:
        stride = self._stride = self._values.shape[1]
        # The same numbers, field after field, for one at a time: numpy takes ten times as long.
        self._cells = self._values.ravel().data.cast("B").cast("d")
        # For the kernel: where the fields are, how far apart, and the curves.
        self.columns = address(self._values), stride, address(self._curves)

    def told(self, request_id: str, generated: int, at: int) -> None:
        """Its answer was so long at that instant."""
        row, cells, stride = self._row_of[request_id], self._cells, self._stride
        cells[3 * stride + row] = generated
        cells[4 * stride + row] = cells[6 * stride + row] = at
        self.changes += 1

    def told_at(self, request_id: str) -> float:
        """When its length was told last."""
        told_at: float = self._cells[4 * self._stride + self._row_of[request_id]]
        return told_at

    def remove(self, request_id: str, answer: int) -> None:
        """`answer`: its length in the end."""
        row, last = self._row_of.pop(request_id), len(self._ids) - 1
        self.changes += 1
        cells = self._cells
        self.prompt_tokens -= cells[row]
        self.ended_tokens += answer
        moved = self._ids.pop()
        if row != last:
            self._ids[row] = moved
            self._row_of[moved] = row
            for first in range(0, len(cells), self._stride):
                cells[first + row] = cells[first + last]
            self._curves[row] = self._curves[last]

    def all_changed(self) -> None:
        """What is known of each of them is not what it was."""
        self.changes += len(self)

    @property
    def curves(self) -> Ints:
        return self._curves[: len(self._ids)]

    @property
    def prompts(self) -> Floats:
        return self._values[0, : len(self._ids)]

    @property
    def lasts_us(self) -> Floats:
        return self._values[2, : len(self._ids)]

    @property
    def limits(self) -> Floats:
        return self._values[5, : len(self._ids)]

    @property
    def longest_prompt(self) -> float:
        """In tokens; at least one call is in flight."""
        return float(np.maximum.reduce(self.prompts))

    def delays_us(self, at: int) -> Floats:
        """How long it is likely to be until each answer grows."""
        delays: Floats = np.maximum(0.0, self._values[6, : len(self._ids)] - at)
        return delays

    def ages_us(self, at: int) -> Floats:
        return np.maximum(0.0, at - self._values[1, : len(self._ids)])

    def generated(self, at: int, token_us: float) -> Floats:
        """Tokens of each answer by now: those told, and what has been added at that speed since."""
        values, n = self._values, len(self._ids)
        told, since, limit = values[3, :n], values[4, :n], values[5, :n]
        grown: Floats = at - since
        np.maximum(0.0, grown, out=grown)
        grown /= token_us
        grown += told
        np.minimum(grown, limit, out=grown)
        return np.maximum(grown, told, out=grown)  # what was told counts, whatever the limit

    def generated_tokens(self, at: int, token_us: float) -> float:
        """Of all answers."""
        return float(np.add.reduce(self.generated(at, token_us)))
