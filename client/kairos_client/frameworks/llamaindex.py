"""Identity of calls in LlamaIndex (core 0.14, workflows 2).

The outermost run of a workflow or an agent is a workflow; nested runs belong to it. A handler of
LlamaIndex's spans is called for each run and each of its steps, in their task or thread. The agent
is the one whose turn it is according to the steps' events; in a workflow without agents, a step
that calls a model counts as one.

All of this is public API, except for the names of the spans. Agents that plain Python runs one
after another are separate workflows. Upstream is not set: steps pass their results on in the
prompts.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.workflow import Event, Workflow
from pydantic import PrivateAttr

from kairos_client.context import Identity


@dataclass(slots=True)
class _Run:
    span: str
    workflow: str
    app: str | None
    is_outermost: bool
    agent: str | None = None  # whose turn it is


_run: ContextVar[_Run | None] = ContextVar("kairos_llamaindex_run", default=None)
_step: ContextVar[str | None] = ContextVar("kairos_llamaindex_step", default=None)


def watch(on_end: Callable[[str], None]) -> None:
    get_dispatcher().add_span_handler(_Spans(on_end))


def identify() -> Identity | None:
    run = _run.get()
    if run is None:
        return None
    return Identity(workflow=run.workflow, agent=run.agent or _step.get(), app=run.app)


class _Spans(BaseSpanHandler[BaseSpan]):
    _on_end: Callable[[str], None] = PrivateAttr()

    def __init__(self, on_end: Callable[[str], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def new_span(
        self, id_: str, bound_args: Any, instance: Any = None, *_args: Any, **_kwargs: Any
    ) -> None:
        if isinstance(instance, Workflow) and ".run-" in id_:
            _run.set(_begun(id_, instance, _run.get()))
            _step.set(None)
        elif _run.get() is not None and _step.get() is None:
            _enter(id_, bound_args.arguments.values())

    def prepare_to_exit_span(self, id_: str, *_args: Any, **_kwargs: Any) -> None:
        run = _run.get()
        if run is not None and run.span == id_ and run.is_outermost:
            self._on_end(run.workflow)

    prepare_to_drop_span = prepare_to_exit_span


def _begun(span: str, instance: Workflow, outer: _Run | None) -> _Run:
    if outer is not None:
        return _Run(span, outer.workflow, outer.app, is_outermost=False)
    kind = type(instance)
    app = None if kind.__module__.startswith("llama_index.") else kind.__name__
    return _Run(span, uuid4().hex, app, is_outermost=True)


def _enter(span: str, arguments: Any) -> None:
    """Enter a span if it is a step: its arguments have an event, or several."""
    firsts = (each[0] if isinstance(each, list) and each else each for each in arguments)
    event = next((each for each in firsts if isinstance(each, Event)), None)
    run = _run.get()
    if event is None or run is None:
        return
    name, *_uuid = span.rsplit("-", 5)
    _step.set(name.rpartition(".")[2])
    run.agent = getattr(event, "current_agent_name", run.agent)
