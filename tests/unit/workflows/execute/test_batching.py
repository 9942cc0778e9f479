"""Which operators go together in an engine's next batch."""

import heapq
import random
from functools import cache
from itertools import count as numbers
from statistics import mean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.workflows import BatchOrder, BatchQueue, BatchShare, topology_aware
from kairos.workflows.execute.batching import TURN_ITEMS, TenantTurns, algorithm_2, blind

# Figure 7 of the paper: A and B of query 1 come, then G and H of query 2. E waits for B, and for D.
FIGURE_7 = {
    "A": "C", "C": "D", "D": "E", "B": "E", "E": "F", "F": "",
    "G": "K", "H": "I", "I": "J", "J": "K", "K": "",
}  # fmt: skip


def depth(name):
    follower = FIGURE_7[name]
    return 1 + depth(follower) if follower else 0


@pytest.mark.parametrize("order", [algorithm_2, topology_aware])
def test_a8_of_the_papers_figure_7_a_and_h_go_first(order: BatchOrder):
    queue = BatchQueue(order)
    names = {
        queue.add((query,), depth(name), 1): name
        for name, query in (("A", 1), ("B", 1), ("G", 2), ("H", 2))
    }
    batches = [{names[share.id] for share in queue.take(2)} for _ in range(3)]

    assert batches == [{"A", "H"}, {"B", "G"}, set()]


OPERATORS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 20)), min_size=1, max_size=30
)


@given(OPERATORS, st.integers(1, 40), st.sampled_from([blind, algorithm_2, topology_aware]))
def test_each_item_goes_once_and_in_order_and_no_batch_has_more_than_its_room(
    operators, room, order
):
    queue = BatchQueue(order)
    items = {queue.add((query,), depth, count): count for query, depth, count in operators}
    gone = dict.fromkeys(items, 0)
    while queue:
        batch = queue.take(room)
        waits = sum(items.values()) - sum(gone.values())
        assert sum(share.items for share in batch) == min(room, waits)
        for share in batch:
            assert share.first == gone[share.id]
            gone[share.id] += share.items

    assert gone == items


# Tenants and items of operators that wait, of a query each; room of a batch; batches by which
# the last one of the tenant "b" has gone, where "a" came first.
SHARED = [
    ([("a", 1000), ("b", 1)], 16, 1),
    ([("a", 1000), ("a", 1000), ("b", 1)], 16, 1),
    ([("a", 1000), ("b", 8)], 16, 1),
    ([("a", 1000), ("b", 80)], 16, 10),
    ([("a", 1000), ("b", 80)], 1, 160),
    ([("a", 1000), ("c", 1000), ("b", 16)], 16, 3),
    ([("a", 3), ("b", 100)], 16, 7),
    ([("a", 1), ("c", 1), ("d", 1), ("b", 1)], 2, 2),
    ([*[("a", 1)] * 1000, ("b", 1)], 16, 1),
    ([("a", 1000), *[("b", 1)] * 8], 16, 1),
]


@pytest.mark.parametrize(("waiting", "room", "batches"), SHARED)
def test_tenants_have_equal_parts_of_batches_whatever_they_ask_for(waiting, room, batches):
    queue = BatchQueue()
    tenant_of = {
        queue.add((n,), 0, items, tenant): tenant for n, (tenant, items) in enumerate(waiting)
    }
    left = sum(items for tenant, items in waiting if tenant == "b")
    took = 0
    while left:
        batch = queue.take(room)
        left -= sum(share.items for share in batch if tenant_of[share.id] == "b")
        took += 1
    assert took == batches


def test_a_query_with_many_items_lets_another_of_its_tenant_go_after_each_turn():
    queue = BatchQueue()
    queue.add((0,), 0, 1000)
    second = queue.add((1,), 0, 2 * TURN_ITEMS)
    gone = []
    while sum(share.items for share in gone if share.id == second) < 2 * TURN_ITEMS:
        gone += queue.take(16)
    assert sum(share.items for share in gone) == 4 * TURN_ITEMS


def test_a_tenant_that_asks_again_and_again_is_behind_those_that_wait():
    queue = BatchQueue()
    patient = queue.add((0,), 0, 1, "z")
    queue.add((1,), 0, 1, "a")
    gone = []
    while patient not in gone:
        gone += [share.id for share in queue.take(1)]
        queue.add((2,), 0, 1, "a")
    assert gone == [patient]
    queue.add((3,), 0, 1, "z")
    assert [share.id for _ in range(3) for share in queue.take(1)] == [1, 3, 2]


def test_a_tenant_that_comes_back_makes_up_for_nothing_and_owes_nothing():
    queue = BatchQueue()
    big = queue.add((0,), 0, 1000, "a")
    small = queue.add((1,), 0, 4, "b")
    for _ in range(8):
        queue.take(1)
    assert len(queue) == 1
    for _ in range(4):
        assert {share.id for share in queue.take(1)} == {big}
    small = queue.add((2,), 0, 100, "b")
    gone = [share for _ in range(20) for share in queue.take(1)]
    assert sum(share.items for share in gone if share.id == small) == 10
    queue.withdraw(big)
    queue.withdraw(small)
    assert vars(queue.turns) == vars(TenantTurns())
    assert not queue._queries


class Node(msgspec.Struct, frozen=True):
    engine: str
    items: int
    followers: tuple[int, ...]


Graph = list[Node]
# Most items of a batch; seconds of a batch, and of each item.
ENGINES = {"embed": (4, 0.05, 0.02), "generate": (2, 0.2, 0.3)}


def random_graph(dice: random.Random) -> Graph:
    """Of 5 to 12 operators, each of which is followed by one or two later ones."""
    size = dice.randint(5, 12)
    return [
        Node(
            dice.choice(list(ENGINES)),
            dice.randint(1, 4),
            tuple(sorted({dice.randint(i + 1, size - 1) for _ in range(dice.randint(1, 2))}))
            if i < size - 1
            else (),
        )
        for i in range(size)
    ]


def depths(graph: Graph) -> list[int]:
    @cache
    def of(number: int) -> int:
        return 1 + max(map(of, graph[number].followers), default=-1)

    return [of(number) for number in range(len(graph))]


class Simulation:
    """Queries on one engine of each sort, which has one batch at a time."""

    def __init__(self, order: BatchOrder, queries: list[tuple[float, Graph]]) -> None:
        self.queries = queries
        self.took_s = [0.0] * len(queries)
        self.events = [(at, number, ("begin", number)) for number, (at, _) in enumerate(queries)]
        self.queues = {engine: BatchQueue(order) for engine in ENGINES}
        self.names: dict[tuple[str, int], tuple[int, int]] = {}
        self.busy: set[str] = set()
        self.depths = [depths(graph) for _, graph in queries]
        self.items = [[node.items for node in graph] for _, graph in queries]
        self.missing = [
            [sum(number in node.followers for node in graph) for number in range(len(graph))]
            for _, graph in queries
        ]

    def run(self) -> list[float]:
        """Seconds that each query takes."""
        heapq.heapify(self.events)
        for tie in numbers(len(self.queries)):
            if not self.events:
                break
            now, _, (what, *of) = heapq.heappop(self.events)
            self.begin(*of) if what == "begin" else self.end(now, *of)
            self.go(now, tie)
        return self.took_s

    def begin(self, query: int) -> None:
        for number, left in enumerate(self.missing[query]):
            if not left:
                self.comes(query, number)

    def comes(self, query: int, number: int) -> None:
        node, depth = self.queries[query][1][number], self.depths[query][number]
        operator = self.queues[node.engine].add((query,), depth, node.items)
        self.names[node.engine, operator] = query, number

    def end(self, now: float, engine: str, batch: list[BatchShare]) -> None:
        self.busy.discard(engine)
        for share in batch:
            query, number = self.names[engine, share.id]
            self.items[query][number] -= share.items
            if not self.items[query][number]:
                self.took_s[query] = now - self.queries[query][0]
                self.follow(query, number)

    def follow(self, query: int, number: int) -> None:
        for follower in self.queries[query][1][number].followers:
            self.missing[query][follower] -= 1
            if not self.missing[query][follower]:
                self.comes(query, follower)

    def go(self, now: float, tie: int) -> None:
        for place, (engine, (room, fixed, each)) in enumerate(ENGINES.items()):
            if engine not in self.busy and (batch := self.queues[engine].take(room)):
                self.busy.add(engine)
                end = now + fixed + each * sum(share.items for share in batch)
                event = (end, tie * len(ENGINES) + place, ("end", engine, batch))
                heapq.heappush(self.events, event)


def poisson(seed: int, *, rate: float = 0.15, queries: int = 150) -> list[tuple[float, Graph]]:
    dice, at, made = random.Random(seed), 0.0, []
    for _ in range(queries):
        at += dice.expovariate(rate)
        made.append((at, random_graph(dice)))
    return made


def test_a8_queries_take_at_least_15_percent_less_than_with_blind_batching():
    loads = [poisson(seed) for seed in range(5)]
    mean_s = {
        order: mean(mean(Simulation(order, load).run()) for load in loads)
        for order in (blind, algorithm_2, topology_aware)
    }

    assert mean_s[topology_aware] <= 0.85 * mean_s[blind]
    assert mean_s[algorithm_2] <= mean_s[blind]
