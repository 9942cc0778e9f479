"""Table of the contexts retained on one instance, for arithmetic over all of them."""

import numpy as np

from kairos.core.dispatcher.demand import SLOT_AT_US, SLOTS, Floats
from kairos.core.dispatcher.native import address
from kairos.core.shared_lru import SharedLru

_NO_BOUND = 1 << 62


class KeptContexts:
    """Table with a row per retained context, unordered. Times in µs, sizes in tokens."""

    def __init__(self) -> None:
        self._names: list[int] = []
        self._row_of: dict[int, int] = {}
        # Tenant and tokens by name; longest retained first.
        self._tenants: SharedLru[int, str] = SharedLru(_NO_BOUND)
        self._values = np.zeros((2, 8))  # tokens; until when
        self._find_columns()
        self.tokens = 0  # sum over all contexts

    def __len__(self) -> int:
        return len(self._names)

    def add(self, tenant: str, name: int, tokens: int, until: int) -> None:
        row = len(self._names)
        if row == self._values.shape[1]:
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
            self._find_columns()
        self._names.append(name)
        self._row_of[name] = row
        self._tenants.put(tenant, name, tenant, tokens)
        self._cells[row], self._cells[self._stride + row] = tokens, until
        self.tokens += tokens

    def _find_columns(self) -> None:
        stride = self._stride = self._values.shape[1]
        # The same numbers for access one at a time, tokens first: numpy takes ten times as long.
        self._cells = self._values.ravel().data.cast("B").cast("d")
        # For the kernel: address of the columns, and their distance.
        self.columns = address(self._values), stride

    def remove(self, name: int) -> None:
        """Remove a context; a no-op if the name is unknown."""
        row = self._row_of.pop(name, None)
        if row is None:
            return
        cells, stride = self._cells, self._stride
        self.tokens -= int(cells[row])
        self._tenants.remove(self._tenants[name], name)
        last = len(self._names) - 1
        moved = self._names.pop()
        if row != last:
            self._names[row] = moved
            self._row_of[moved] = row
            cells[row], cells[stride + row] = cells[last], cells[stride + last]
        cells[stride + last] = 0.0  # for the kernel, which reads whole columns

    def over(self, at: int) -> list[int]:
        """Return the names of contexts whose retention has expired."""
        rows = np.flatnonzero(self._values[1, : len(self)] <= at)
        return [self._names[row] for row in rows.tolist()]

    def gives_way(self, tenant: str) -> int:
        """Return the name of the context to evict for something of the tenant's.

        That is the longest retained one of the tenant with most retained tokens.
        """
        return next(iter(self._tenants.of(self._tenants.gives_way(tenant))))

    def by_slot(self, at: int) -> Floats:
        """Return the tokens retained at the beginning of each slot."""
        tokens, until = self._values[:, : len(self)]
        slots = np.searchsorted(SLOT_AT_US, until - at)
        begun = np.bincount(slots, weights=tokens, minlength=SLOTS + 1)
        kept: Floats = begun[::-1].cumsum()[-2::-1]
        return kept
