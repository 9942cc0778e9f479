"""Identity of calls in Pydantic AI.

A run of an agent is a run of a graph, like runs of the user's own graphs: entering and leaving
`GraphRun` is wrapped. A workflow is the outermost run, of an agent or a graph, whose name is the
app.

Not public: `GraphAgentDeps`, which has the agent of a graph's run, and the `run_step` of its state.

The first step of an agent that a tool runs has an upstream, while the tools have had no other
agent's answer yet: the agent that called the tool (tools run in asyncio tasks of their own, user
code around the steps of `agent.iter` does not). Data passed between the steps of a graph shows in
the text. Several `agent.run` one after the other, outside any graph or tool, are separate
workflows. An agent without a name is reported as None.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from pydantic_ai._agent_graph import GraphAgentDeps
from pydantic_graph import GraphRun

from kairos_client.context import Identity


class _Run:
    def __init__(self, graph_run: Any, outer: "_Run | None") -> None:
        deps = graph_run.deps
        self.outer = outer
        self.root: _Run = outer.root if outer else self
        self.workflow: str = outer.workflow if outer else uuid4().hex
        self.agent: Any = getattr(deps, "agent", None) if isinstance(deps, GraphAgentDeps) else None
        self.named: Any = self.agent or graph_run.graph
        self.state = graph_run.state
        self.task = _task()
        self.answered_step = 0  # in which a run that its tools began has ended
        self.caller = outer if outer and outer.calls_from(self.task) else None

    @property
    def step(self) -> int:
        return getattr(self.state, "run_step", 0) if self.agent else 0

    def calls_from(self, task: Any) -> bool:
        """Return whether this agent certainly led to a run that begins now in `task`."""
        return bool(self.agent) and task is not self.task and self.answered_step != self.step


_current: ContextVar[_Run | None] = ContextVar("kairos_client_pydantic_ai", default=None)
_runs: WeakKeyDictionary[Any, _Run] = WeakKeyDictionary()


def _task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def watch(on_end: Callable[[str], None]) -> None:
    enter, leave = GraphRun.__aenter__, GraphRun.__aexit__

    @wraps(enter)
    async def known_enter(self: Any) -> Any:
        entered = await enter(self)
        run = _runs[self] = _Run(self, _current.get())
        _current.set(run)
        return entered

    @wraps(leave)
    async def known_leave(self: Any, *error: Any) -> Any:
        try:
            return await leave(self, *error)
        finally:
            if run := _runs.pop(self, None):
                _end(run, on_end)

    GraphRun.__aenter__, GraphRun.__aexit__ = known_enter, known_leave


def _end(run: _Run, on_end: Callable[[str], None]) -> None:
    if _current.get() is run:
        _current.set(run.outer)
    if run.outer is None:
        on_end(run.workflow)
    else:
        run.outer.answered_step = run.outer.step


def identify() -> Identity | None:
    run = _current.get()
    if run is None:
        return None
    return Identity(
        workflow=run.workflow,
        agent=run.agent.name if run.agent else None,
        upstream=run.caller.agent.name if run.caller and run.step == 1 else None,
        app=run.root.named.name,
    )
