"""Identity of calls in LangGraph.

A callback handler, added to every run of LangChain by `register_configure_hook`, is called when a
node of a graph begins; LangChain stores the run of a call in a context variable. A node was
triggered by the nodes of the step before: if only one agent made calls in these, or before them if
they called no model, it is the upstream. Only the first call of a node has an upstream.

Not documented, though not private by name: `var_child_runnable_config`, the tag `graph:step:N` and
the metadata `langgraph_step` and `langgraph_node`.

The upstream is unknown after parallel agents are joined, after a subgraph of several agents, from
the second call of a node on, and so for all but the first tasks of the functional API. A graph that
is resumed after an interrupt is a separate workflow.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from kairos_client.context import Identity

_UNNAMED = "LangGraph"  # LangGraph's name of a graph without one
_PREBUILT = {"model", "agent", "tools"}  # nodes of a prebuilt agent, which is a graph

_Agents = frozenset[str | None]  # None: an unknown agent, or the user
_NOBODY: _Agents = frozenset([None])


class _Node:
    """Execution of a node."""

    def __init__(self, upstream: _Agents, outer: "_Node | None") -> None:
        self.upstream = upstream
        self.outer = outer  # the node that its graph runs in
        self.spoken: set[str | None] = set()
        self.calling = 0  # calls of LangChain's models in progress
        self.first_is_over = False

    def speak(self, agent: str) -> _Agents:
        """Note a call of an agent; return the agents that led to it."""
        upstream = _NOBODY if self.first_is_over else self.upstream
        self.first_is_over |= not self.calling  # the end of another client's call is not known
        self.spoken.add(agent)
        outer = self.outer
        while outer is not None:
            outer.spoken.add(agent)
            outer.first_is_over = True
            outer = outer.outer
        return upstream


class _Run:
    """Run of a graph, a node, a tool, or of any other LangChain object except a model."""

    def __init__(self, name: str, parent: "_Run | None") -> None:
        self.name = name
        self.root: _Run = parent.root if parent else self
        self.node: _Node | None = parent.node if parent else None
        self.agent: str | None = parent.agent if parent else None
        self.place: str | None = parent.place if parent else None  # the node's name
        self.steps: dict[int, list[_Node]] = {}  # of a graph
        self.given = self.node.upstream if self.node and not self.node.spoken else _NOBODY
        self.inside: list[UUID] = []  # of a root: all runs in it
        self.has_called = False

    def enter(self, graph: "_Run", node: str, step: int) -> None:
        before = graph.steps.get(step - 1, ())
        said = frozenset(agent for each in before for agent in each.spoken or each.upstream)
        self.node = _Node(said or graph.given, graph.node)
        graph.steps.setdefault(step, []).append(self.node)
        self.agent = self.place = node
        if node in _PREBUILT:
            self.agent = graph.name if graph.name != _UNNAMED else graph.agent or node


_runs: dict[UUID, _Run] = {}


def _begin(run_id: UUID, name: str, parent: _Run | None) -> _Run:
    run = _runs[run_id] = _Run(name, parent)
    run.root.inside.append(run_id)
    return run


class _Handler(BaseCallbackHandler):
    run_inline = True  # else it would be called in a thread

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end

    def on_chain_start(
        self,
        *_args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_kwargs: Any,
    ) -> None:
        parent = _find(parent_run_id)
        run = _begin(run_id, name or _UNNAMED, parent)
        about = metadata or {}
        step, place = about.get("langgraph_step"), about.get("langgraph_node")
        if parent is None or step is None or place is None:
            return
        if f"graph:step:{step}" in (tags or ()):
            run.enter(parent, place, step)
        elif place != parent.place:  # a task of the functional API, in the node that called it
            run.agent = run.place = place

    def on_chain_end(self, *_args: Any, run_id: UUID, **_kwargs: Any) -> None:
        run = _runs.get(run_id)
        if run is None or run.root is not run:
            return
        for each in run.inside:
            _runs.pop(each, None)
        if run.has_called:
            self._on_end(str(run_id))

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        *_args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_kwargs: Any,
    ) -> None:
        parent = _find(parent_run_id)
        if parent:
            run = _begin(run_id, _UNNAMED, parent)
            run.agent = (serialized or {}).get("name", parent.agent)

    def on_llm_start(self, *_args: Any, parent_run_id: UUID | None = None, **_kwargs: Any) -> None:
        if node := _node(parent_run_id):
            node.calling += 1

    def on_llm_end(self, *_args: Any, parent_run_id: UUID | None = None, **_kwargs: Any) -> None:
        if node := _node(parent_run_id):
            node.calling -= 1
            node.first_is_over = True

    on_chat_model_start = on_llm_start
    on_chain_error = on_chain_end
    on_llm_error = on_llm_end


def _find(run_id: UUID | None) -> _Run | None:
    return None if run_id is None else _runs.get(run_id)


def _node(run_id: UUID | None) -> _Node | None:
    run = _find(run_id)
    return run.node if run else None


def watch(on_end: Callable[[str], None]) -> None:
    hook = ContextVar[Any]("kairos_client_langgraph", default=_Handler(on_end))  # noqa: B039
    register_configure_hook(hook, inheritable=True)


def identify() -> Identity | None:
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    run = _find(getattr(callbacks, "parent_run_id", None))
    if run is None or run.node is None or run.agent is None:
        return None
    root = run.root
    root.has_called = True
    upstream = run.node.speak(run.agent)
    return Identity(
        workflow=str(root.inside[0]),
        agent=run.agent,
        upstream=next(iter(upstream)) if len(upstream) == 1 else None,
        app=root.name if root.name != _UNNAMED else None,
    )
