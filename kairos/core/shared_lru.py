"""What is remembered of all tenants within one bound, so that none pushes out another's.

Where there is no room, the tenant that holds most gives way, and of its own what was used longest
ago. So a tenant that is alone has all of the room, as if there were no tenants; and however much
one of them makes Kairos remember, the others have as much as they need, or as much as it has: the
max-min fair share. Nobody is counted or configured. Longest queue drop: Wei, Coyle and Hsiao, "An
optimal buffer management policy for high-performance packet switching", GLOBECOM 1991.

Deviation: room is made before what comes is added, and where nobody holds more, its own tenant
gives way. So what was just added is always there.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_FEW = 64  # entries of a heap that may be dead beside as many as are not


class Holdings:
    """How much each tenant holds, and who holds most. O(1) while what is held grows by little, and
    O(log tenants), amortised, at worst.

    A heap has a bound for each tenant, of which it holds no more. The bounds leave some room, so
    few additions change one; they are corrected when they come to the top.
    """

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[str, int] = {}
        self._bounds: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # bounds, negative; some are not true any more

    def __iter__(self) -> Iterator[str]:
        """Tenants that hold something."""
        return iter(self._held)

    def of(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def add(self, tenant: str, amount: int) -> None:
        """It holds so much more, or, negative, less."""
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
        """To something of the newcomer's: who holds most, or itself, if nobody holds more. Somebody
        holds something."""
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
    """At most so many entries, or so much of what they weigh, of all tenants together. Each entry
    is one tenant's, and a key is in use once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()  # of all; longest unused first
        self._of: dict[str, OrderedDict[Key, int]] = {}  # by tenant, what each weighs; alike
        self._holdings = Holdings()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __getitem__(self, key: Key) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[Key]:
        """Longest unused first."""
        return iter(self._values)

    def keys(self) -> KeysView[Key]:
        """Longest unused first."""
        return self._values.keys()

    def values(self) -> Iterable[Value]:
        """Longest unused first."""
        return self._values.values()

    def unordered(self) -> list[Value]:
        """All values, at a tenth of what it takes to have them in order."""
        return [*dict.values(self._values)]

    def oldest(self) -> tuple[Key, Value]:
        """Of all. There is something."""
        return next(iter(self._values.items()))

    def of(self, tenant: str) -> Collection[Key]:
        """The tenant's; longest unused first."""
        return self._of.get(tenant, ())

    def gives_way(self, newcomer: str) -> str:
        """See `Holdings`."""
        return self._holdings.gives_way(newcomer)

    def has_room(self, tenant: str) -> bool:
        """For one more of the tenant's, without one of its own giving way to it."""
        return self._holdings.total < self._most or self.gives_way(tenant) != tenant

    @property
    def weight(self) -> int:
        return self._holdings.total

    def put(
        self, tenant: str, key: Key, value: Value, weight: int = 1
    ) -> Sequence[tuple[Key, Value]]:
        """Keep it as what was used last, in place of what has its key. Returns what gave way."""
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
        """It is used now. It is here."""
        self._values.move_to_end(key)
        self._of[tenant].move_to_end(key)

    def remove(self, tenant: str, key: Key) -> Value | None:
        """Returns what it was; None: it is not here."""
        if key not in self._values:
            return None
        of = self._of[tenant]
        self._holdings.add(tenant, -of.pop(key))
        if not of:
            del self._of[tenant]
        return self._values.pop(key)

    def pop_oldest(self, tenant: str) -> tuple[Key, Value]:
        """Take out what the tenant, which has something, used longest ago."""
        of = self._of[tenant]
        key, weight = of.popitem(last=False)
        if not of:
            del self._of[tenant]
        self._holdings.add(tenant, -weight)
        return key, self._values.pop(key)
