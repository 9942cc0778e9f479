"""Which of the operators that wait at an engine go together in its next batch.

An engine that embeds or reranks takes little longer for some items than for one, so what waits goes
in batches. Not all operators of a query bring its end equally near: one whose follower waits for
another branch may as well go later. Ayo's Algorithm 2 (Teola, section 5.2) makes a batch so:
operators that wait are grouped by query, and the groups sorted by their earliest arrival; of each
group those of the highest depth go, as far as there is room. The depth of an operator is how many
others follow it on the longest way to an output.

Two deviations. Where room is left after a round of all queries, there is another one, with the next
lower depth of each; the paper leaves that room unused. And `topology_aware` takes queries in the
order in which they began, so that the oldest end first, where the paper goes by when the operators
came that wait now (`algorithm_2`). That matters most: on random graphs at a high load the mean time
of a query is 23 % below that of blind batching, and 1 % as the paper has it; at a low load 3 % and
1 % (tests/unit/workflows/execute/test_batching.py).

Tenants take turns: the tenant that has had the fewest items while it waited is next, with its part
of the batch (not in the paper, which has one user). Among the queries of a tenant, one that has had
as many items as a turn has (`TURN_ITEMS`) is behind those that have not. So neither a tenant nor a
query with thousands of items has others wait for all of them.
"""

from collections.abc import Callable, Collection
from itertools import groupby

import msgspec

Query = tuple[int, ...]
TURN_ITEMS = 64  # of a query, before another query of its tenant goes


class WaitingOperator(msgspec.Struct, frozen=True, gc=False):
    """An operator that waits at an engine, with so many items left."""

    id: int  # of two, the lesser one came earlier
    query: Query  # whose it is; of two, the lesser one began earlier
    depth: int
    items: int
    tenant: str = ""


class BatchShare(msgspec.Struct, frozen=True, gc=False):
    """What goes of an operator: from its item `first` on, which is the first that has not gone."""

    id: int
    first: int
    items: int


BatchOrder = Callable[[Collection[WaitingOperator]], list[WaitingOperator]]


def blind(waiting: Collection[WaitingOperator]) -> list[WaitingOperator]:
    """As they came: what the others are compared to."""
    return sorted(waiting, key=lambda each: each.id)


def algorithm_2(waiting: Collection[WaitingOperator]) -> list[WaitingOperator]:
    """By rounds; queries as the first of their operators came that wait now."""
    return _by_rounds(waiting, lambda of_query: (min(each.id for each in of_query),))


def topology_aware(waiting: Collection[WaitingOperator]) -> list[WaitingOperator]:
    """By rounds; queries as they began."""
    return _by_rounds(waiting, lambda of_query: of_query[0].query)


def _by_rounds(
    waiting: Collection[WaitingOperator], arrival: Callable[[list[WaitingOperator]], Query]
) -> list[WaitingOperator]:
    """Of each query those of its highest depth, then of each those of the next. O(n log n)."""
    ranked: list[tuple[int, Query, int, WaitingOperator]] = []
    deepest_first = sorted(waiting, key=lambda each: (each.query, -each.depth))
    for _, group in groupby(deepest_first, lambda each: each.query):
        of_query = list(group)
        arrived = arrival(of_query)
        for number, (_, level) in enumerate(groupby(of_query, lambda each: each.depth)):
            ranked += [(number, arrived, each.id, each) for each in level]
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked]


class TenantTurns:
    """Items that tenants have had while they waited. Queues may share them."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}  # operators of each tenant
        self._had: dict[str, int] = {}  # items, from where the others were when it came

    def comes(self, tenant: str) -> None:
        """Count one more operator that waits. A tenant that comes anew makes up for nothing."""
        self._had.setdefault(tenant, min(self._had.values(), default=0))
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def leaves(self, tenant: str) -> None:
        """Count one less."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant], self._had[tenant]

    def charge(self, tenant: str, items: int) -> None:
        """Count items that the tenant has had, if it waits for more."""
        if tenant in self._had:
            self._had[tenant] += items

    def next_of(self, tenants: Collection[str]) -> str:
        """Return whose turn it is of some tenants that wait: of equal ones the first that came."""
        return min((each for each in self._had if each in tenants), key=self._had.__getitem__)

    def had(self, tenant: str) -> int:
        """Return the items of a tenant that waits, to compare tenants by."""
        return self._had[tenant]


class BatchQueue:
    """Operators that wait at engines of one sort."""

    def __init__(
        self, order: BatchOrder = topology_aware, turns: TenantTurns | None = None
    ) -> None:
        """Order the operators of a tenant. Queues with the same turns share what tenants had."""
        self._order, self.turns = order, turns or TenantTurns()
        self._waiting: dict[int, WaitingOperator] = {}
        self._items: dict[int, int] = {}  # of an operator that waits, all, with those that went
        self._next_id = 0
        # Of a query that waits: its operators, and items that went.
        self._queries: dict[tuple[str, Query], list[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, query: Query, depth: int, items: int, tenant: str = "") -> int:
        """Add an operator with at least one item. Return its id, by which shares name it."""
        assert items > 0, items
        number, self._next_id = self._next_id, self._next_id + 1
        self._waiting[number] = WaitingOperator(number, query, depth, items, tenant)
        self._items[number] = items
        self._queries.setdefault((tenant, query), [0, 0])[0] += 1
        self.turns.comes(tenant)
        return number

    def withdraw(self, number: int) -> None:
        """Forget an operator, of which nothing more is wanted."""
        operator = self._waiting.pop(number, None)
        if operator is None:
            return
        del self._items[number]
        key = operator.tenant, operator.query
        of_query = self._queries[key]
        of_query[0] -= 1
        if not of_query[0]:
            del self._queries[key]
        self.turns.leaves(operator.tenant)

    @property
    def next_tenant(self) -> str:
        """The tenant whose turn it is, of those that wait here."""
        return self.turns.next_of({each.tenant for each in self._waiting.values()})

    def take(self, room: int) -> list[BatchShare]:
        """Take the next batch, of at most `room` items, out of the queue."""
        by_tenant: dict[str, list[WaitingOperator]] = {}
        for each in self._waiting.values():
            by_tenant.setdefault(each.tenant, []).append(each)
        for of_tenant in by_tenant.values():
            of_tenant[:] = self._in_turn(of_tenant)
            of_tenant.reverse()  # the next is the last
        part, taken = -(-room // max(1, len(by_tenant))), dict[int, int]()
        while room and by_tenant:
            tenant = self.turns.next_of(by_tenant)
            left = min(part, room)
            while left and by_tenant[tenant]:
                each = by_tenant[tenant][-1]
                share = min(left, each.items - taken.get(each.id, 0))
                taken[each.id] = taken.get(each.id, 0) + share
                left, room = left - share, room - share
                self.turns.charge(tenant, share)
                if taken[each.id] == each.items:
                    by_tenant[tenant].pop()
            if not by_tenant[tenant]:
                del by_tenant[tenant]
        return [self._share(number, items) for number, items in taken.items()]

    def _in_turn(self, waiting: list[WaitingOperator]) -> list[WaitingOperator]:
        """Order the operators of a tenant: queries that had their turn are behind the others."""

        def turns_had(each: WaitingOperator) -> int:
            return self._queries[each.tenant, each.query][1] // TURN_ITEMS

        return sorted(self._order(waiting), key=turns_had)

    def _share(self, number: int, items: int) -> BatchShare:
        operator = self._waiting[number]
        share = BatchShare(number, self._items[number] - operator.items, items)
        self._queries[operator.tenant, operator.query][1] += items
        if items == operator.items:
            self.withdraw(number)
        else:
            left = msgspec.structs.replace(operator, items=operator.items - items)
            self._waiting[number] = left
        return share
