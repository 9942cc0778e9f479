"""What needs no LangGraph; the rest is `tests/e2e/test_langgraph_flows.py`."""

import sys
from types import SimpleNamespace

import pytest

from kairos.core import SetupError
from kairos.workflows.compile.invalid import InvalidFlow, OperatorFailed
from kairos.workflows.imports.langgraph import (
    GraphState,
    from_langgraph,
    node_function,
    steps_of,
    written,
)


class Channel:
    """The values of the last step in which there were some."""

    def __init__(self):
        self.values, self.steps = [], 0

    def copy(self):
        return Channel()

    def update(self, values):
        self.steps += 1
        self.values = values or self.values

    def is_available(self):
        return bool(self.values)

    def get(self):
        return [self.steps, *self.values]


def builder(edges, waiting=()):
    return SimpleNamespace(
        edges={tuple(edge.split(">")) for edge in edges}, waiting_edges=set(waiting)
    )


def test_without_langgraph_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "langgraph", None)

    with pytest.raises(SetupError, match="pip install langgraph langchain-openai"):
        from_langgraph(object())


def test_a_node_runs_once_more_for_each_step_in_which_something_leads_to_it():
    edges = ["__start__>b", "__start__>a", "a>c", "b>d", "c>d", "d>__end__"]

    assert steps_of(builder(edges)) == [["a", "b"], ["c", "d"], ["d"]]


def test_edges_that_are_added_as_one_wait_for_all_of_their_nodes():
    edges = ["__start__>b", "__start__>a", "a>c", "d>__end__"]

    assert steps_of(builder(edges, [(("b", "c"), "d")])) == [["a", "b"], ["c"], ["d"]]


def test_a_graph_whose_nodes_run_too_often_is_refused():
    edges = [f"n{i}>n{j}" for i in range(60) for j in range(i + 1, 60)]

    with pytest.raises(InvalidFlow, match="its nodes run more than 1000 times"):
        steps_of(builder(["__start__>n0", *edges]))


def test_channels_have_the_writes_of_a_step_together_and_are_told_of_each_step():
    state = GraphState({"a": Channel(), "b": Channel(), "c": Channel()}, ["a"])
    writes = [{"b": 1}, 2, {"a": 3}]

    values = state.values({"a": 0, "c": 0}, writes, [[None, "b"], [None]], ["a", "b", "c"])

    assert values == {"a": [3, 3], "b": [3, 1, 2]}


def test_what_a_node_returns_is_kept_as_plain_json():
    class Text(str):
        __slots__ = ()

    kept = written("n", {"a": (Text("x"), {Text("k"): 1.5})})

    assert kept == {"a": ["x", {"k": 1.5}]}
    assert type(kept["a"][0]) is str
    assert written("n", None) == {}
    for wrong in ("x", {"a": {1}}, {"a": {1: 2}}):
        with pytest.raises(OperatorFailed, match="node 'n' returned a "):
            written("n", wrong)


def test_a_node_that_is_an_ordinary_function_is_given_state_keys_and_writes_some():
    node = SimpleNamespace(func=len, invoke=lambda values: {"seen": values})
    state = GraphState({"a": Channel(), "b": Channel()}, given=("a",))
    act = node_function("node", node, state, ["a"])

    assert act({"a": 1, "b": 2}, [], []) == {"seen": {"a": [1, 1]}}


async def test_a_node_that_is_a_coroutine_function_alone_is_awaited():
    async def ainvoke(values):
        return {"seen": values}

    state = GraphState({"a": Channel()}, given=("a",))
    act = node_function("node", SimpleNamespace(func=None, ainvoke=ainvoke), state, ["a"])

    assert await act({"a": 1}, [], []) == {"seen": {"a": [1, 1]}}
