"""Call graphs of every shape. A span is written (id, agent, led to by, start, end); who led to it
is an agent's name, or, in a list, the ids of calls."""

import random
import sys

import pytest

from kairos.orchestrator.graph import CallGraph
from kairos.orchestrator.remaining import remaining
from kairos.orchestrator.spans import Span


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


# The shapes of the paper's Figures 2 and 11: from names alone, and as told.
SHAPES = {
    "a chain": (
        [("a1", "a", "user", 0, 10), ("b1", "b", "a", 12, 20), ("c1", "c", "b", 20, 30)],
        [[("a1", [[("b1", [["c1"]])]])]],
    ),
    "a branch": (
        [("a1", "router", "user", 0, 10), ("b1", "math", "router", 12, 20)],
        [[("a1", [["b1"]])]],
    ),
    "a parallel fan-out": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 20),
            ("c1", "c", "a", 12, 30),
            ("d1", "d", "a", 29, 40),
        ],
        [[("a1", [["b1", "c1", "d1"]])]],
    ),
    "sequential calls of one caller": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 20),
            ("c1", "c", "a", 20, 30),
            ("d1", "d", "a", 35, 40),
        ],
        [[("a1", [["b1"], ["c1"], ["d1"]])]],
    ),
    "a parallel pair, then one more, then another pair": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 20),
            ("c1", "c", "a", 12, 18),
            ("d1", "d", "a", 20, 30),
            ("e1", "e", "a", 31, 50),
            ("f1", "f", "a", 32, 33),
        ],
        [[("a1", [["b1", "c1"], ["d1"], ["e1", "f1"]])]],
    ),
    "parallel chains, of which the calls overlap only as branches": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 13),
            ("f1", "f", "b", 13, 30),
            ("c1", "c", "a", 20, 25),
            ("g1", "g", "c", 40, 50),
        ],
        [[("a1", [[("b1", [["f1"]]), ("c1", [["g1"]])]])]],
    ),
    "a sequential sibling begins after the whole branch before it": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 13),
            ("f1", "f", "b", 13, 30),
            ("c1", "c", "a", 30, 35),
        ],
        [[("a1", [[("b1", [["f1"]])], ["c1"]])]],
    ),
    "a fan-out in a fan-out": (
        [
            ("a1", "a", "user", 0, 10),
            ("b1", "b", "a", 11, 20),
            ("c1", "c", "a", 11, 60),
            ("d1", "d", "b", 21, 40),
            ("e1", "e", "b", 22, 40),
            ("f1", "f", "b", 41, 50),
        ],
        [[("a1", [[("b1", [["d1", "e1"], ["f1"]]), "c1"]])]],
    ),
    "several calls of the user": (
        [("a1", "a", None, 0, 10), ("b1", "b", "user", 5, 20), ("c1", "c", "user", 30, 40)],
        [["a1", "b1"], ["c1"]],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_recovered_from_names_alone(name):
    rows, expected = SHAPES[name]
    made = graph(*rows)

    assert shape(made) == expected
    assert ambiguous(made) == set()
    assert not any(node.missing for node in made.nodes.values())


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_recovered_from_ids_in_any_order_of_arrival(name):
    rows, expected = SHAPES[name]
    only = {agent: call for call, agent, *_ in rows}
    told = [
        (call, "same", [only[up]] if up in only else None, begin, end)
        for call, _, up, begin, end in rows
    ]
    for seed in range(5):
        random.Random(seed).shuffle(told)
        made = graph(*told)
        assert shape(made) == expected
        assert ambiguous(made) == set()


FAN_OUT = [("a1", "a", "user", 0, 10), ("b1", "b", ["a1"], 11, 20), ("c1", "c", ["a1"], 12, 30)]


def test_a_join_that_tells_all_its_parents_sits_after_them_under_their_caller():
    made = graph(*FAN_OUT, ("d1", "d", ["b1", "c1"], 31, 40), ("e1", "e", ["d1"], 41, 50))

    assert shape(made) == [[("a1", [["b1", "c1"], [("d1", [["e1"]])]])]]
    assert made.nodes["d1"].parents == ("b1", "c1")
    assert made.nodes["d1"].caller == "a1"
    assert ambiguous(made) == set()


def test_a_join_of_some_branches_overlaps_with_the_others():
    made = graph(*FAN_OUT, ("x1", "x", ["a1"], 12, 99), ("d1", "d", ["b1", "c1"], 31, 40))

    assert shape(made) == [[("a1", [["b1", "c1", "x1", "d1"]])]]
    assert made.nodes["d1"].parents == ("b1", "c1")


def test_a_join_of_the_ends_of_chains_sits_where_the_chains_part():
    made = graph(
        *FAN_OUT,
        ("f1", "f", ["b1"], 20, 28),
        ("g1", "g", ["c1"], 30, 34),
        ("d1", "d", ["f1", "g1"], 35, 40),
    )

    assert shape(made) == [[("a1", [[("b1", [["f1"]]), ("c1", [["g1"]])], ["d1"]])]]


def test_a_call_that_tells_of_its_parents_parent_too_sits_under_its_parent():
    made = graph(*FAN_OUT[:2], ("c1", "c", ["a1", "b1"], 21, 30))

    assert shape(made) == [[("a1", [[("b1", [["c1"]])]])]]
    assert made.nodes["c1"].parents == ("a1", "b1")


def test_a_join_of_calls_of_the_user_sits_under_no_call():
    made = graph(
        ("a1", "a", None, 0, 10), ("b1", "b", None, 0, 12), ("c1", "c", ["a1", "b1"], 13, 20)
    )

    assert shape(made) == [["a1", "b1"], ["c1"]]


def test_by_name_a_call_after_a_whole_fan_out_is_taken_for_its_join_and_is_ambiguous():
    made = graph(*FAN_OUT, ("d1", "d", "c", 30, 40), ("e1", "e", "d", 41, 50))

    assert shape(made) == [[("a1", [["b1", "c1"], [("d1", [["e1"]])]])]]
    assert made.nodes["d1"].parents == ("b1", "c1")
    assert made.nodes["d1"].named == "c1"
    assert ambiguous(made) == {"d1"}


def test_by_name_two_calls_can_join_one_fan_out_and_a_third_can_join_them():
    made = graph(
        *FAN_OUT,
        ("d1", "d", "c", 31, 40),
        ("e1", "e", "c", 32, 45),
        ("f1", "f", "d", 46, 50),
    )

    assert shape(made) == [[("a1", [["b1", "c1"], ["d1", "e1"], ["f1"]])]]
    assert made.nodes["f1"].parents == ("d1", "e1")
    assert made.nodes["d1"].parents is made.nodes["e1"].parents  # else n joins of n take n squared
    assert ambiguous(made) == {"d1", "e1", "f1"}


def test_by_name_a_call_in_the_middle_of_a_fan_out_is_no_join():
    made = graph(*FAN_OUT, ("d1", "d", "b", 29, 40))

    assert shape(made) == [[("a1", [[("b1", [["d1"]]), "c1"]])]]
    assert ambiguous(made) == set()


def test_by_name_a_call_beside_others_of_its_parent_is_no_join():
    made = graph(*FAN_OUT, ("d1", "d", "b", 25, 40), ("e1", "e", "b", 35, 45))

    assert shape(made) == [[("a1", [[("b1", [["d1", "e1"]]), "c1"]])]]
    assert ambiguous(made) == set()


def test_by_name_a_call_is_no_join_while_something_told_goes_on_beside_it():
    told = [("d1", "d", ["b1"], 20, 50), ("e1", "e", ["b1"], 21, 25)]
    made = graph(*FAN_OUT, *told, ("f1", "f", "b", 31, 40))

    assert shape(made) == [[("a1", [[("b1", [["d1", "e1", "f1"]]), "c1"]])]]
    assert ambiguous(made) == set()


@pytest.mark.parametrize("times", [[(11, 20), (12, 30), (25, 40)], [(11, 40), (12, 15), (30, 35)]])
def test_by_name_a_join_is_of_all_calls_that_overlap_directly_or_through_others(times):
    rows = [(f"b{n}", f"b{n}", "a", *time) for n, time in enumerate(times)]
    made = graph(("a1", "a", "user", 0, 10), *rows, ("d1", "d", "b2", 41, 50))

    assert made.nodes["d1"].parents == ("b0", "b1", "b2")


def test_by_name_a_join_may_seem_to_begin_too_early_by_the_skew():
    made = graph(*FAN_OUT, ("d1", "d", "c", 28, 40), skew_us=2)

    assert shape(made) == [[("a1", [["b1", "c1"], ["d1"]])]]


def test_by_name_calls_that_overlap_by_the_skew_are_not_joined():
    rows = [("a1", "a", "user", 0, 10), ("b1", "b", "a", 11, 20), ("c1", "c", "a", 18, 30)]
    made = graph(*rows, ("d1", "d", "c", 31, 40), skew_us=2)

    assert shape(made) == [[("a1", [["b1"], [("c1", [["d1"]])]])]]


def test_by_name_two_parallel_chains_do_not_join_each_other():
    made = graph(*FAN_OUT, ("d1", "d", "b", 31, 40), ("e1", "e", "c", 32, 38))

    assert shape(made) == [[("a1", [[("b1", [["d1"]]), ("c1", [["e1"]])]])]]
    assert ambiguous(made) == set()


def test_a_told_parent_is_believed_where_a_name_would_be_a_join():
    made = graph(*FAN_OUT, ("d1", "d", ["c1"], 31, 40))

    assert shape(made) == [[("a1", [["b1", ("c1", [["d1"]])]])]]
    assert ambiguous(made) == set()


def feedback_loop(rounds):
    rows = [("p", "project_manager", "user", 0, 5)]
    upstream = "project_manager"
    for n in range(rounds):
        rows.append((f"e{n}", "engineer", upstream, 10 * n + 6, 10 * n + 9))
        rows.append((f"q{n}", "qa_engineer", "engineer", 10 * n + 10, 10 * n + 15))
        upstream = "qa_engineer"
    return rows


def test_a_feedback_loop_is_a_chain_of_its_rounds():
    made = graph(*feedback_loop(3))
    order = ["p", "e0", "q0", "e1", "q1", "e2", "q2"]

    assert [made.nodes[call].caller for call in order] == [None, *order[:-1]]
    assert ambiguous(made) == set()


def test_what_follows_a_feedback_loop_follows_its_last_round_without_doubt():
    made = graph(*feedback_loop(3), ("d", "deployer", "qa_engineer", 36, 40))

    assert made.nodes["d"].caller == "q2"
    assert ambiguous(made) == set()


def test_an_agent_that_calls_itself_is_a_chain():
    made = graph(*[(f"s{n}", "solver", "solver" if n else "user", n, n + 1) for n in range(20)])

    assert [made.nodes[f"s{n}"].caller for n in range(1, 20)] == [f"s{n}" for n in range(19)]
    assert ambiguous(made) == set()


def test_sequential_siblings_of_one_name_are_told_apart_by_time():
    rows = [("a1", "a", "user", 0, 10), ("b1", "b", "a", 11, 20), ("b2", "b", "a", 21, 30)]
    assert shape(graph(*rows)) == [[("a1", [["b1"], ["b2"]])]]


def test_parallel_siblings_of_one_name_are_parallel():
    rows = [("a1", "a", "user", 0, 10), ("b1", "b", "a", 11, 20), ("b2", "b", "a", 12, 30)]
    assert shape(graph(*rows)) == [[("a1", [["b1", "b2"]])]]


def test_a_tie_between_namesakes_goes_to_the_latest_finished_and_is_ambiguous():
    made = graph(
        ("a1", "a", "user", 0, 10),
        ("b1", "b", "a", 11, 25),
        ("b2", "b", "a", 12, 20),
        ("x1", "x", "a", 12, 99),
        ("c1", "c", "b", 26, 30),
    )

    assert made.nodes["c1"].caller == "b1"
    assert ambiguous(made) == {"c1"}


def test_a_namesake_that_led_to_such_a_call_before_is_no_rival():
    made = graph(
        ("a1", "a", "user", 0, 10),
        ("b1", "b", "a", 11, 20),
        ("c1", "c", "b", 20, 30),
        ("b2", "b", "a", 30, 40),
        ("c2", "c", "b", 41, 50),
    )

    assert [made.nodes[call].caller for call in ("c1", "c2")] == ["b1", "b2"]
    assert ambiguous(made) == set()


def test_a_namesake_that_led_to_calls_of_others_only_is_a_rival():
    made = graph(
        ("a1", "a", "user", 0, 10),
        ("b1", "b", "a", 11, 20),
        ("d1", "d", "b", 20, 30),
        ("b2", "b", "a", 30, 40),
        ("c2", "c", "b", 41, 50),
    )

    assert made.nodes["c2"].caller == "b2"
    assert ambiguous(made) == {"c2"}


def test_a_call_that_failed_is_a_parent_by_name_only_if_there_is_no_other():
    b1, b2 = ("b1", "b", "a", 11, 20), span("b2", "b", "a", 20, 25, outcome="failed")
    made = graph(("a1", "a", "user", 0, 10), b1, b2, ("c1", "c", "b", 26, 30))
    alone = graph(("a1", "a", "user", 0, 10), b2, ("c1", "c", "b", 26, 30))

    assert made.nodes["c1"].caller == "b1"
    assert alone.nodes["c1"].caller == "b2"
    assert ambiguous(made) == ambiguous(alone) == set()


def test_a_call_that_still_runs_led_to_nothing():
    made = graph(("a1", "a", "user", 0, 10), ("a2", "a", "a", 10, 30), ("b1", "b", "a", 20, 40))

    assert made.nodes["b1"].caller == "a1"


def test_touching_calls_follow_each_other():
    made = graph(("a1", "a", "user", 0, 10), ("b1", "b", "a", 10, 20))

    assert made.nodes["b1"].caller == "a1"


@pytest.mark.parametrize("upstream", ["tool", "b"])
def test_a_call_of_an_upstream_that_was_never_seen_has_no_caller_and_says_so(upstream):
    made = graph(("a1", "a", "user", 0, 10), ("b1", "b", upstream, 11, 20))

    assert made.nodes["b1"].caller is None
    assert made.nodes["b1"].missing == (upstream,)
    assert made.stages(None) == [["a1"], ["b1"]]


def test_a_parent_that_never_appears_is_missing_and_the_others_are_kept():
    made = graph(*FAN_OUT, ("d1", "d", ["b1", "gone"], 31, 40), ("e1", "e", ["lost"], 41, 50))

    assert (made.nodes["d1"].caller, made.nodes["d1"].missing) == ("b1", ("gone",))
    assert (made.nodes["e1"].caller, made.nodes["e1"].missing) == (None, ("lost",))


def test_a_call_whose_parent_is_missing_leads_to_others_by_its_name():
    made = graph(*FAN_OUT, ("e1", "e", ["lost"], 41, 50), ("f1", "f", "e", 51, 60))

    assert made.nodes["f1"].caller == "e1"


def test_a_parent_that_is_told_twice_is_one_parent():
    made = graph(*FAN_OUT, ("d1", "d", ["b1", "b1"], 31, 40))

    assert made.nodes["d1"].parents == ("b1",)


def test_a_parent_that_appears_late_is_missing_no_more():
    made = graph(("b1", "b", ["a1"], 11, 20))
    assert made.nodes["b1"].missing == ("a1",)

    made.add(span("a1", "a", "user", 0, 10))
    assert made.nodes["b1"].missing == ()
    assert shape(made) == [[("a1", [["b1"]])]]


def test_a_retry_is_one_call_whose_span_is_the_last_attempts():
    for order in ([1, 2, 3], [3, 1, 2], [2, 2, 3, 1, 1]):
        attempts = [span("a1", "a", "user", 10 * n, 10 * n + n, attempt=n) for n in order]
        made = graph(*attempts, ("b1", "b", "a", 40, 50))

        assert len(made) == 2
        assert made.nodes["a1"].span.attempt == 3
        assert made.nodes["a1"].attempts == 3
        assert made.nodes["b1"].attempts == 1


def test_the_same_attempt_told_again_changes_nothing():
    made = graph(*FAN_OUT)
    before = dict(made.nodes)
    for row in FAN_OUT:
        made.add(span(*row))
        made.add(span(row[0], "else", "user", 0, 1))

    assert made.nodes == before


def test_told_parents_are_believed_against_the_clocks():
    made = graph(("b1", "b", ["a1"], 0, 5), ("a1", "a", "user", 3, 10), ("c1", "c", ["b1"], 1, 4))

    assert [made.nodes[call].caller for call in ("a1", "b1", "c1")] == [None, "a1", "b1"]


def test_calls_that_claim_to_be_each_others_parents_are_broken_at_the_first():
    made = graph(
        ("a1", "a", ["c1"], 0, 10),
        ("b1", "b", ["a1"], 10, 20),
        ("c1", "c", ["b1"], 20, 30),
        ("d1", "d", ["d1"], 40, 50),
    )

    assert [made.nodes[call].caller for call in ("a1", "b1", "c1")] == [None, "a1", "b1"]
    assert made.nodes["a1"].missing == ("c1",)
    assert made.nodes["d1"].missing == ("d1",)


def test_clocks_that_disagree_by_no_more_than_the_skew_do_no_harm():
    """The clock of b's and d's host is 4 behind: b seems to begin before a ended, d before c."""
    rows = [
        ("a1", "a", "user", 100, 120),
        ("b1", "b", "a", 117, 136),
        ("c1", "c", "a", 141, 160),
        ("d1", "d", "a", 157, 170),
    ]

    assert shape(graph(*rows, skew_us=4)) == [[("a1", [["b1"], ["c1"], ["d1"]])]]
    assert graph(*rows).nodes["b1"].missing == ("a",)


def test_a_graph_can_be_asked_and_then_go_on():
    made = graph(*FAN_OUT[:1])
    assert made.stages("a1") == []

    for row in FAN_OUT[1:]:
        made.add(span(*row))
    assert made.stages("a1") == [["b1", "c1"]]


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
        return steps(lambda: remaining(made))

    # From 100 calls to 1,600 n grows by 16, n log n by 26 and n squared by 256. The logarithms are
    # those of sorting, in C, and of climbing, few steps beside all others.
    assert recover(1_600) < 20 * recover(100)
