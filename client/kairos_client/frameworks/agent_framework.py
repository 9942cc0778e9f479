"""Identity of calls in Microsoft's Agent Framework (core 1.23).

Runs are runs of workflows and agents; while `run` of either is active, a context variable has it.
An executor or a step that calls a model without an agent counts as one.

All of this is public API, except that `Executor.execute` is not meant for users. Agents that plain
Python runs one after another, and a run resumed with responses, are separate workflows. An agent
without a name is reported as None.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from agent_framework import (
    AgentMiddlewareLayer,
    Executor,
    FunctionalWorkflow,
    RawAgent,
    ResponseStream,
    StepWrapper,
    Workflow,
)

from kairos_client.frameworks.runs import Run, identify

__all__ = ["identify", "watch"]

_UNNAMED = "WorkflowBuilder-"  # how the name of a workflow begins that was given none


def watch(on_end: Callable[[str], None]) -> None:
    for kind in (AgentMiddlewareLayer, RawAgent, Workflow, FunctionalWorkflow):
        kind.run = _known(kind.run, on_end)
    Executor.execute = _step(Executor.execute, lambda executor: executor.id, on_end)
    StepWrapper.__call__ = _step(StepWrapper.__call__, lambda step: step.name, on_end)


def _begun(runs: Any) -> Run:
    if isinstance(runs, RawAgent):
        return Run(runs.name, is_agent=True, app=runs.name)
    return Run(app=None if runs.name.startswith(_UNNAMED) else runs.name)


def _known(run: Callable[..., Any], on_end: Callable[[str], None]) -> Callable[..., Any]:
    @wraps(run)
    def known_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begun(self)
        with begun.current():
            result = run(self, *args, **kwargs)
        if isinstance(result, ResponseStream):
            result.with_pull_context_manager(begun.current)
            return result.with_cleanup_hook(partial(begun.end, on_end))
        return _awaited(begun, result, on_end)

    return known_run


def _step(
    call: Callable[..., Any], name: Callable[[Any], str], on_end: Callable[[str], None]
) -> Callable[..., Any]:
    @wraps(call)
    async def known_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await _awaited(Run(name(self)), call(self, *args, **kwargs), on_end)

    return known_call


async def _awaited(run: Run, result: Any, on_end: Callable[[str], None]) -> Any:
    try:
        with run.current():
            return await result
    finally:
        run.end(on_end)
