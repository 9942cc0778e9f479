"""Call graphs of every shape. A span is written (id, agent, led to by, start, end); who led to it
is an agent's name, or, in a list, the ids of calls."""

import sys

import pytest

from kairos.core import CallGraph, remaining_work
from kairos.core.orchestrator.spans import Span


def span(call, agent, led_by, started_at, finished_at, **fields):
    told = {"parent_ids": tuple(led_by)} if isinstance(led_by, list) else {"upstream": led_by}
    return Span(
        id=call, agent=agent, started_at=started_at, finished_at=finished_at, **told, **fields
    )


def graph(*rows, skew_us=0):
    made = CallGraph(skew_us=skew_us)
    for row in rows:
        made.add(row if isinstance(row, Span) else span(*row))
    return made


def ambiguous(made):
    return {call for call, node in made.nodes.items() if node.ambiguous}


def shape(made, call=None):
    """The stages under a call: a call is its id, or (id, stages) if it has any."""
    return [
        [(child, shape(made, child)) if made.children(child) else child for child in stage]
        for stage in made.stages(call)
    ]


FAN_OUT = [("a1", "a", "user", 0, 10), ("b1", "b", ["a1"], 11, 20), ("c1", "c", ["a1"], 12, 30)]


def test_by_name_a_call_is_no_join_while_something_told_goes_on_beside_it():
    told = [("d1", "d", ["b1"], 20, 50), ("e1", "e", ["b1"], 21, 25)]
    made = graph(*FAN_OUT, *told, ("f1", "f", "b", 31, 40))

    assert shape(made) == [[("a1", [[("b1", [["d1", "e1", "f1"]]), "c1"]])]]
    assert ambiguous(made) == set()


def test_sequential_siblings_of_one_name_are_told_apart_by_time():
    rows = [("a1", "a", "user", 0, 10), ("b1", "b", "a", 11, 20), ("b2", "b", "a", 21, 30)]
    assert shape(graph(*rows)) == [[("a1", [["b1"], ["b2"]])]]


def test_parallel_siblings_of_one_name_are_parallel():
    rows = [("a1", "a", "user", 0, 10), ("b1", "b", "a", 11, 20), ("b2", "b", "a", 12, 30)]
    assert shape(graph(*rows)) == [[("a1", [["b1", "b2"]])]]


def test_a_retry_is_one_call_whose_span_is_the_last_attempts():
    for order in ([1, 2, 3], [3, 1, 2], [2, 2, 3, 1, 1]):
        attempts = [span("a1", "a", "user", 10 * n, 10 * n + n, attempt=n) for n in order]
        made = graph(*attempts, ("b1", "b", "a", 40, 50))

        assert len(made) == 2
        assert made.nodes["a1"].span.attempt == 3
        assert made.nodes["a1"].attempts == 3
        assert made.nodes["b1"].attempts == 1


def test_of_a_call_that_is_not_there_nothing_is_known():
    with pytest.raises(KeyError):
        graph().stages("a1")


LARGE = {
    "a chain": lambda n: [(f"c{k}", f"a{k}", f"a{k - 1}", k, k + 1) for k in range(n)],
    "a chain that is told": lambda n: [(f"c{k}", "a", [f"c{k - 1}"], k, k + 1) for k in range(n)],
    "an agent that calls itself": lambda n: [(f"c{k}", "a", "a", k, k + 1) for k in range(n)],
    "a fan-out": lambda n: (
        [("c0", "a", None, 0, 1)] + [(f"c{k}", "b", "a", k, n + k) for k in range(1, n)]
    ),
    "sequential calls": lambda n: (
        [("c0", "a", None, 0, 1)] + [(f"c{k}", "b", "a", k, k + 1) for k in range(1, n)]
    ),
    "a chain with a call beside each": lambda n: [
        row
        for k in range(n // 2)
        for row in [(f"c{k}", "a", "a", k, k + 1), (f"s{k}", "b", "a", k, n)]
    ],
    "joins of one fan-out": lambda n: (
        [(f"b{k}", "b", None, 0, 1) for k in range(n // 2)]
        + [(f"c{k}", "c", "b", 2, 3) for k in range(n // 2)]
    ),
    "joins of joins": lambda n: [
        (f"c{k}", f"a{k % 2}", f"a{k % 2}", k // 2, k // 2 + 1) for k in range(n)
    ],
    "joins that tell of all calls before": lambda n: [
        (f"c{k}", "a", [f"c{k - 1 - j}" for j in range(min(k, 3))], k, k + 1) for k in range(n)
    ],
    "joins of two chains": lambda n: [
        row
        for k in range(n // 4 + 1)
        for row in [
            (f"c{k}", "a", [f"c{k - 1}"], 4 * k, 4 * k + 1),
            (f"d{k}", "a", [f"d{k - 1}"], 4 * k, 4 * k + 1),
            (f"j{k}", "a", [f"c{k}", f"d{k}"], 4 * k + 2, 4 * k + 3),
            (f"i{k}", "a", [f"c{k}", "c0"], 4 * k + 2, 4 * k + 3),
        ]
    ][:n],
    "agents with an agent of its own after each": lambda n: [
        row
        for k in range(n // 2)
        for row in [(f"c{k}", "a", None, 2 * k, 2 * k + 1), (f"d{k}", f"d{k}", "a", 2 * k + 1, n)]
    ],
    "children that began before their parents": lambda n: [
        (f"c{k}", "a", [f"c{k + 1}"], k, k + 1) for k in range(n)
    ],
}


@pytest.mark.parametrize("name", LARGE)
def test_thousands_of_calls_are_no_trouble(name):
    """More than Python may nest."""
    made = graph(*LARGE[name](3_000))
    to_do, reached = [None], 0
    while to_do:
        stages = made.stages(to_do.pop())
        to_do += [call for stage in stages for call in stage]
        reached += sum(map(len, stages))

    assert reached == len(made) == 3_000


def steps(work):
    """Lines of Python that run; sorting and heaps, which are C, are O(n log n) by themselves."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", LARGE)
def test_the_cost_per_call_grows_no_faster_than_a_logarithm(name):
    def recover(n):
        made = graph(*LARGE[name](n))
        return steps(lambda: remaining_work(made))

    # From 100 calls to 1,600 n grows by 16, n log n by 26 and n squared by 256. The logarithms are
    # those of sorting, in C, and of climbing, few steps beside all others.
    assert recover(1_600) < 20 * recover(100)
