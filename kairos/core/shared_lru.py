"""LRU cache with one bound for all tenants, in which no tenant can crowd out another.

When it is full, the tenant that holds most loses its least recently used entry. So a tenant that is
alone can use the whole cache, as if there were no tenants; and however much one tenant adds, the
others have as much as they need, or as much as it has: the max-min fair share. Nothing is
configured. Longest queue drop: Wei, Coyle and Hsiao, "An optimal buffer management policy for
high-performance packet switching", GLOBECOM 1991.

Deviation: entries are evicted before the new one is added, and if no tenant holds more, the
newcomer's tenant loses one. So the entry just added is always present.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_FEW = 64  # dead entries of a heap that are tolerated in addition to as many as are alive


class Holdings:
    """Amount held by each tenant, with a query for the tenant that holds most.

    O(1) while amounts grow by little, and O(log tenants), amortised, at worst. A heap has an upper
    bound of each tenant's amount. The bounds leave some slack, so few additions change one; they
    are corrected when they reach the top.
    """

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[str, int] = {}
        self._bounds: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # negated bounds; some entries are outdated

    def __iter__(self) -> Iterator[str]:
        """Yield tenants that hold something."""
        return iter(self._held)

    def of(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def add(self, tenant: str, amount: int) -> None:
        """Add `amount` (negative: subtract it) to what the tenant holds."""
        self.total += amount
        held = self._held[tenant] = self._held.get(tenant, 0) + amount
        if not held:
            del self._held[tenant]
            self._bounds.pop(tenant, None)
            return
        if held > self._bounds.get(tenant, 0):
            self._bound(tenant, held + held // 8)

    def _bound(self, tenant: str, bound: int) -> None:
        self._bounds[tenant] = bound
        heappush(self._heap, (-bound, tenant))
        if len(self._heap) > 2 * len(self._bounds) + _FEW:
            # Sorted, it is a heap.
            self._heap = sorted((-most, each) for each, most in self._bounds.items())

    def gives_way(self, newcomer: str) -> str:
        """Return the tenant that loses an entry for one of the newcomer's.

        That is the tenant that holds most, or the newcomer if no tenant holds more. Some tenant
        must hold something.
        """
        own, heap = self._held.get(newcomer, 0), self._heap
        while True:
            bound, tenant = -heap[0][0], heap[0][1]
            if self._bounds.get(tenant) != bound:
                heappop(heap)
            elif own >= bound:
                return newcomer
            elif (held := self._held[tenant]) == bound:
                return tenant
            else:
                self._bounds[tenant] = held
                heapreplace(heap, (-held, tenant))


class SharedLru(Generic[Key, Value]):
    """LRU cache with at most `most` entries, or units of weight, of all tenants together.

    Each entry belongs to one tenant, and each key is used once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()  # least recently used first
        self._of: dict[str, OrderedDict[Key, int]] = {}  # weights by tenant, in the same order
        self._holdings = Holdings()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __getitem__(self, key: Key) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[Key]:
        """Yield keys, least recently used first."""
        return iter(self._values)

    def keys(self) -> KeysView[Key]:
        """Return keys, least recently used first."""
        return self._values.keys()

    def values(self) -> Iterable[Value]:
        """Return values, least recently used first."""
        return self._values.values()

    def unordered(self) -> list[Value]:
        """Return all values in any order, ten times as fast as in order."""
        return [*dict.values(self._values)]

    def oldest(self) -> tuple[Key, Value]:
        """Return the least recently used entry. The cache must not be empty."""
        return next(iter(self._values.items()))

    def of(self, tenant: str) -> Collection[Key]:
        """Return the tenant's keys, least recently used first."""
        return self._of.get(tenant, ())

    def gives_way(self, newcomer: str) -> str:
        """Return the tenant that loses an entry for one of the newcomer's; see `Holdings`."""
        return self._holdings.gives_way(newcomer)

    def has_room(self, tenant: str) -> bool:
        """Return whether the tenant can add an entry without losing one of its own."""
        return self._holdings.total < self._most or self.gives_way(tenant) != tenant

    @property
    def weight(self) -> int:
        return self._holdings.total

    def put(
        self, tenant: str, key: Key, value: Value, weight: int = 1
    ) -> Sequence[tuple[Key, Value]]:
        """Store an entry as most recently used, replacing any of its key; return evicted ones."""
        if key in self._values:
            if self._of[tenant][key] == weight:
                self._values[key] = value
                self.touch(tenant, key)
                return ()
            self.remove(tenant, key)
        out: Sequence[tuple[Key, Value]] = ()
        if self._holdings.total + weight > self._most:
            out = self._make_room(tenant, weight)
        self._values[key] = value
        of = self._of.get(tenant)
        if of is None:
            of = self._of[tenant] = OrderedDict()
        of[key] = weight
        self._holdings.add(tenant, weight)
        return out

    def _make_room(self, tenant: str, weight: int) -> list[tuple[Key, Value]]:
        out = []
        while self._holdings.total + weight > self._most and self._values:
            out.append(self.pop_oldest(self._holdings.gives_way(tenant)))
        return out

    def touch(self, tenant: str, key: Key) -> None:
        """Mark an entry, which must be present, as most recently used."""
        self._values.move_to_end(key)
        self._of[tenant].move_to_end(key)

    def recall(self, tenant: str, key: Key, make: Callable[[], Value]) -> Value:
        """Return an entry, as most recently used; store what `make` returns if there is none."""
        if key in self._values:
            self.touch(tenant, key)
            return self._values[key]
        value = make()
        self.put(tenant, key, value)
        return value

    def remove(self, tenant: str, key: Key) -> Value | None:
        """Remove an entry and return its value; None if it is not present."""
        if key not in self._values:
            return None
        of = self._of[tenant]
        self._holdings.add(tenant, -of.pop(key))
        if not of:
            del self._of[tenant]
        return self._values.pop(key)

    def pop_oldest(self, tenant: str) -> tuple[Key, Value]:
        """Remove and return the tenant's least recently used entry. It must have one."""
        of = self._of[tenant]
        key, weight = of.popitem(last=False)
        if not of:
            del self._of[tenant]
        self._holdings.add(tenant, -weight)
        return key, self._values.pop(key)
