"""G1: a typed graph with units; cycles unrolled, agents opened, calls taken apart, steps joined."""

import pytest

from experiments.hardware.passes import decomposed, fused
from experiments.hardware.unrolling import flattened, unrolled
from kairos.errors import SetupError
from kairos.planner.work_graph import (
    MAX_NODES,
    TokenCounts,
    Work,
    WorkEdge,
    WorkGraph,
    WorkKind,
    WorkNode,
    check,
    critical_path,
    order,
    size,
)


def llm(name, prompt=100.0, answer=50.0, **more):
    tokens = TokenCounts(prompt=prompt, answer=answer)
    return WorkNode(name=name, kind=WorkKind.LLM, tokens=tokens, **more)


def step(name, core_s=1.0, **more):
    return WorkNode(name=name, kind=WorkKind.COMPUTE, work=Work(core_s=core_s), **more)


def graph(*nodes, edges=()):
    return WorkGraph(
        nodes=nodes,
        edges=tuple(WorkEdge(source=e[0], target=e[1], **(e[2] if e[2:] else {})) for e in edges),
    )


def runs(found):
    return {node.name: node.runs for node in found.nodes}


def test_g1_a_loop_runs_as_often_as_its_edge_is_taken():
    writing = graph(
        llm("write"), llm("judge"), step("send"),
        edges=[("write", "judge"), ("judge", "send"),
               ("judge", "write", {"times": 2, "share": 0.5})],
    )  # fmt: skip
    found = unrolled(writing)
    assert runs(found) == {
        "write": 1, "judge": 1, "send": 1, "write#2": 0.5, "judge#2": 0.5,
        "write#3": 0.25, "judge#3": 0.25,
    }  # fmt: skip
    assert all(edge.times is None for edge in found.edges)
    names = order(found)
    assert names.index("judge") < names.index("write#2") < names.index("judge#3")
    assert names[-1] == "send"


def test_g1_a_loop_around_a_loop_repeats_what_is_inside_of_it():
    nested = graph(
        llm("plan"), llm("act"), llm("check"),
        edges=[("plan", "act"), ("act", "check"), ("act", "act", {"times": 1}),
               ("check", "plan", {"times": 1, "share": 0.5})],
    )  # fmt: skip
    found = runs(unrolled(nested))
    assert sum(v for name, v in found.items() if name.startswith("act")) == 3.0  # 2, and half of 2
    assert sum(v for name, v in found.items() if name.startswith("plan")) == 1.5


def test_g1_a_long_bound_costs_nothing_where_the_loop_is_seldom_taken():
    seldom = graph(llm("a"), edges=[("a", "a", {"times": 1000, "share": 0.01})])
    assert len(unrolled(seldom).nodes) == 4  # 1, 1e-2, 1e-4, 1e-6


def test_g1_what_is_inside_of_an_agent_takes_its_place():
    inside = graph(llm("think"), step("note"), edges=[("think", "note")])
    whole = graph(
        step("in"),
        WorkNode(name="helper", kind=WorkKind.AGENT, inside=inside, runs=2.0),
        step("out"),
        edges=[("in", "helper", {"data_bytes": 7.0}), ("helper", "out")],
    )
    found = flattened(whole)
    assert runs(found) == {"in": 1, "helper/think": 2, "helper/note": 2, "out": 1}
    assert [(e.source, e.target, e.data_bytes) for e in found.edges] == [
        ("helper/think", "helper/note", 0),
        ("in", "helper/think", 7),
        ("helper/note", "out", 0),
    ]
    assert size(whole) == 5


def test_g1_a_call_is_taken_apart_into_phases_with_its_cache_between_them():
    found = decomposed(graph(llm("ask", prompt=1000, answer=20), step("use"),
                             edges=[("ask", "use")]), lambda _model: 128 * 1024.0)  # fmt: skip
    assert [node.name for node in found.nodes] == ["ask.prefill", "ask.decode", "use"]
    sent = {(e.source, e.target): e.data_bytes for e in found.edges}
    assert sent == {("ask.prefill", "ask.decode"): 1000 * 128 * 1024, ("ask.decode", "use"): 0}
    assert found.node("ask.decode").tokens == TokenCounts(prompt=1000, cached=1000, answer=20)


def test_g1_a_tool_that_waits_and_computes_is_a_lookup_and_a_computation():
    tool = WorkNode(name="search", kind=WorkKind.TOOL, work=Work(core_s=2, wait_s=3))
    lookup, compute = decomposed(graph(tool), lambda _model: 0.0).nodes
    assert (lookup.kind, lookup.work) == (WorkKind.TOOL, Work(wait_s=3))
    assert (compute.kind, compute.work) == (WorkKind.COMPUTE, Work(core_s=2))


def test_g1_steps_of_which_one_only_follows_the_other_are_joined():
    chain = graph(step("parse", 1), step("sort", 2), step("send", 3), llm("ask"),
                  edges=[("parse", "sort", {"data_bytes": 9}), ("sort", "send"),
                         ("send", "ask")])  # fmt: skip
    found = fused(chain)
    assert [(node.name, node.work.core_s) for node in found.nodes] == [
        ("parse+sort+send", 6),
        ("ask", 0),
    ]
    assert [(e.source, e.target) for e in found.edges] == [("parse+sort+send", "ask")]
    assert fused(found) == found


def test_g1_steps_that_others_need_too_are_not_joined():
    branching = graph(step("a"), step("b"), step("c"), edges=[("a", "b"), ("a", "c")])
    assert fused(branching) == branching


def test_the_critical_path_is_the_longest():
    diamond = graph(*(step(n) for n in "abcd"),
                    edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])  # fmt: skip
    assert critical_path(diamond, {"a": 1, "b": 5, "c": 2, "d": 1}) == (7, ("a", "b", "d"))
    assert critical_path(WorkGraph(nodes=()), {}) == (0.0, ())


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (graph(llm("a"), llm("a")), "two nodes are named 'a'"),
        (graph(llm("a"), edges=[("a", "b")]), "there is no node 'b'"),
        (graph(llm("a"), llm("b"), edges=[("a", "b"), ("b", "a")]), "cycle goes through a, b"),
        (graph(llm("a", runs=-1)), "must be 0 or more"),
        (graph(llm("a", prompt=float("nan"))), "must be 0 or more"),
        (graph(llm("a"), edges=[("a", "a", {"times": 0})]), "times is 0; give 1"),
        (graph(llm("a"), edges=[("a", "a", {"times": 2, "share": 2})]), "share is 2"),
        (graph(WorkNode(name="a", kind=WorkKind.LLM)), "an LLM call has tokens"),
        (graph(WorkNode(name="a", kind=WorkKind.AGENT)), "an agent has a graph inside"),
        (
            graph(WorkNode(name="x", kind=WorkKind.AGENT, inside=graph(llm("b"), llm("b")))),
            "in 'x': two nodes are named 'b'",
        ),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(wrong, problem):
    with pytest.raises(SetupError, match=problem):
        check(wrong)


def test_a_graph_that_would_grow_beyond_all_bounds_is_refused():
    body = [llm(f"n{i}") for i in range(100)]
    chain = [(f"n{i}", f"n{i + 1}") for i in range(99)]
    with pytest.raises(SetupError, match=f"more than {MAX_NODES} nodes"):
        unrolled(graph(*body, edges=[*chain, ("n99", "n0", {"times": 1000})]))


def test_times_on_an_edge_that_closes_no_cycle_is_refused():
    with pytest.raises(SetupError, match="take `times` away"):
        unrolled(graph(llm("a"), llm("b"), edges=[("a", "b", {"times": 3})]))
