"""Identity of calls in CrewAI (1.15).

CrewAI gives each run of a crew, a flow or an agent an id, which nested runs share. Its hooks run in
the task or thread of the call: before a model is called they name the agent; a flow's method that
calls a model itself counts as one.

All of this is public API, except for the role as written, before inputs were filled in. The agent
of an `LLM.call` in a crew's tool is not known. Upstream is not set: tasks receive the outputs of
others as text.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from crewai.execution import get_execution_uuid
from crewai.hooks import InterceptionPoint, register_hook

from kairos_client.context import Identity


class _Run(NamedTuple):
    workflow: str
    app: str | None
    outermost: Any  # crew or flow


_run: ContextVar[_Run | None] = ContextVar("kairos_crewai_run", default=None)
_agent: ContextVar[str | None] = ContextVar("kairos_crewai_agent", default=None)
_method: ContextVar[str | None] = ContextVar("kairos_crewai_method", default=None)


def watch(on_end: Callable[[str], None]) -> None:
    def ends(context: Any) -> None:
        run = _current()
        if run is not None and run.outermost is (context.crew or context.flow):
            on_end(run.workflow)

    register_hook(InterceptionPoint.EXECUTION_START, _starts)
    register_hook(InterceptionPoint.EXECUTION_END, ends)
    register_hook(InterceptionPoint.PRE_STEP, _steps)
    register_hook(InterceptionPoint.PRE_MODEL_CALL, _calls)
    register_hook(InterceptionPoint.POST_MODEL_CALL, _called)


def identify() -> Identity | None:
    workflow = get_execution_uuid()
    if workflow is None:
        return None
    run = _current()
    if run is None:
        return Identity(workflow=workflow, agent=_agent.get())
    return Identity(workflow=workflow, agent=_agent.get() or _method.get(), app=run.app)


def _current() -> _Run | None:
    run = _run.get()
    return run if run is not None and run.workflow == get_execution_uuid() else None


def _starts(context: Any) -> None:
    workflow = get_execution_uuid()
    if workflow is not None and _current() is None:
        _run.set(_Run(workflow, _app(context), context.crew or context.flow))
        _method.set(None)


def _app(context: Any) -> str | None:
    if context.crew is not None:
        return context.crew.name if context.crew.name != "crew" else None
    if type(context.flow).is_crewai_internal:
        return None
    return context.flow.name or type(context.flow).__name__


def _steps(context: Any) -> None:
    if context.kind == "flow_method":
        _method.set(context.step_name)


def _calls(context: Any) -> None:
    agent = context.agent
    role = getattr(agent, "_original_role", None) or getattr(agent, "role", None)
    _agent.set(role.strip() if role else None)


def _called(_context: Any) -> None:
    _agent.set(None)
