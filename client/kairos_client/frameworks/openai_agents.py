"""Identity of calls in the OpenAI Agents SDK.

A call is made inside the SDK's spans (a run of agents, an agent, its turn, a tool's function), and
these inside a trace, which is the workflow: that of one `Runner.run`, or the user's own around
several. With tracing off, spans and traces are still made, but without ids and links: so this
module links them as they are made.

Not public: `DefaultTraceProvider`, whose two `create_` methods are wrapped (a processor would not
be called with tracing off), and the classes of traces, whose `finish` is wrapped. A provider that
the user wrote from scratch is not detected, nor is the trace that a resumed run continues.

The first turn of a run that a tool began, as with `Agent.as_tool`, has an upstream: the agent that
called the tool. Hand-offs and results of tools show in a call's text.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

from agents.tracing import Span, SpanData, Trace, get_current_span, get_current_trace
from agents.tracing.provider import DefaultTraceProvider
from agents.tracing.traces import NoOpTrace, TraceImpl

from kairos_client.context import Identity

_UNNAMED = "Agent workflow"
_CALLERS = (
    "agent",
    "function",
    "guardrail",
)  # a tool's function or a guardrail: by code of its own


class _Workflow(NamedTuple):
    id: str
    app: str | None
    is_inner: bool  # of a trace within one


class _Link:
    """Link of a span to its enclosing span."""

    def __init__(self, data: Any, outer: "_Link | None") -> None:
        self.data = data
        self.outer = outer
        self.has_run = False  # of a function: it began a run
        self.caller: str | None = None  # of a run: the agent whose tool began it
        if data.type == "task" and outer and outer.data.type == "function" and not outer.has_run:
            outer.has_run = True
            agent = outer.nearest("agent")
            self.caller = agent.data.name if agent else None

    def nearest(self, *kinds: str) -> "_Link | None":
        link: _Link | None = self
        while link is not None and link.data.type not in kinds:
            link = link.outer
        return link


_links: WeakKeyDictionary[Span[Any], _Link] = WeakKeyDictionary()
_workflows: WeakKeyDictionary[Trace, _Workflow] = WeakKeyDictionary()


def watch(on_end: Callable[[str], None]) -> None:
    _wrap_provider()
    for kind in (TraceImpl, NoOpTrace):
        _wrap_finish(kind, on_end)


def _wrap_provider() -> None:
    create_trace, create_span = DefaultTraceProvider.create_trace, DefaultTraceProvider.create_span

    @wraps(create_trace)
    def known_trace(self: Any, name: str, *args: Any, **kwargs: Any) -> Trace:
        trace = create_trace(self, name, *args, **kwargs)
        outer = _of(_workflows, get_current_trace())
        if outer is not None:
            _workflows[trace] = outer._replace(is_inner=True)
        else:
            name_of_it = uuid4().hex if isinstance(trace, NoOpTrace) else trace.trace_id
            app = name if name != _UNNAMED else None
            _workflows[trace] = _Workflow(name_of_it, app, is_inner=False)
        return trace

    @wraps(create_span)
    def linked_span(
        self: Any,
        span_data: SpanData,
        span_id: Any = None,
        parent: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Span[Any]:
        span = create_span(self, span_data, span_id, parent, *args, **kwargs)
        outer = parent if isinstance(parent, Span) else get_current_span()
        _links[span] = _Link(span_data, _of(_links, outer))
        return span

    DefaultTraceProvider.create_trace = known_trace
    DefaultTraceProvider.create_span = linked_span


def _wrap_finish(kind: Any, on_end: Callable[[str], None]) -> None:
    finish = kind.finish

    @wraps(finish)
    def told_finish(self: Trace, *args: Any, **kwargs: Any) -> None:
        finish(self, *args, **kwargs)
        workflow = _workflows.pop(self, None)
        if workflow is not None and not workflow.is_inner:
            on_end(workflow.id)

    kind.finish = told_finish


def _of(known: WeakKeyDictionary[Any, Any], key: Any) -> Any:
    return None if key is None else known.get(key)


def identify() -> Identity | None:
    workflow: _Workflow | None = _of(_workflows, get_current_trace())
    link: _Link | None = _of(_links, get_current_span())
    if workflow is None and link is None:
        return None
    caller = link.nearest(*_CALLERS) if link else None
    return Identity(
        workflow=workflow.id if workflow else None,
        agent=caller.data.name if caller else None,
        upstream=_upstream(link) if link and caller and caller.data.type == "agent" else None,
        app=workflow.app if workflow else None,
    )


def _upstream(link: _Link) -> str | None:
    turn, run = link.nearest("turn"), link.nearest("task")
    return run.caller if run and turn and turn.data.turn == 1 else None
