"""One invocation of a flow: its row goes through the executor, to its outputs.

The executor works in a thread, so that what a flow computes (templates, of anyone's making) takes
no turn of the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from kairos.core.errors import KairosError
from kairos.host.tenant_threads import TenantThreads
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.commands import (
    EndRun,
    FailRow,
    FetchCached,
    FlowCommand,
    GatherRow,
    KeepResult,
    ReadGroups,
    WriteRow,
)
from kairos.workflows.execute.executor import Executor as FlowExecutor
from kairos.workflows.execute.facts import (
    CallAnswered,
    FlowFact,
    GroupRead,
    GroupsEnded,
    InputEnded,
    RowRead,
)
from kairos.workflows.execute.limits import FlowFigures, FlowLimits
from kairos.workflows.run.calls import CallCommand, RunCalls
from kairos.workflows.serve.records import OperatorBroke
from kairos.workflows.serve.shared_results import InvocationSharing

_T = TypeVar("_T")

COMPUTE_S = 10.0  # of a processor, for all that is no call
FUNCTIONS = 4  # that one invocation runs at once
# The queue orders calls; so many of one invocation wait there at once.
LIMITS = FlowLimits(
    capacity=32,
    functions=FUNCTIONS,
    processors=32,
    max_open_rows=1,
    row_steps=100_000,
    row_bytes=64 << 20,
)


class OperatorFinished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of an operator has its result. `operator`: its name; in a body with its rounds and
    items (`refine.2.better`). `merged`: an equal call gave it."""

    operator: str
    at_s: float  # since the invocation began
    merged: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class FlowResult(msgspec.Struct, frozen=True):
    """`outputs`: by column; None: the row was filtered away."""

    outputs: Mapping[str, object] | None
    figures: FlowFigures
    took_s: float
    finish_reason: str = "stop"  # of the last LLM call


MakeCalls = Callable[[Callable[[FlowFact], None]], RunCalls]
WhyFailed = Callable[[str, str], KairosError | None]


class ComputeTime:
    """What an invocation has had of threads, one at a time."""

    def __init__(self) -> None:
        self._began_s, self._used_s = 0.0, 0.0  # of the thread's own time
        self._is_over = False

    def spend_on(self, work: Callable[[], _T]) -> _T:
        self._began_s = time.thread_time()
        try:
            return work()
        finally:
            self._used_s += time.thread_time() - self._began_s

    def is_spent(self) -> bool:
        """Asked by the work itself."""
        return self._is_over or self._used_s + time.thread_time() - self._began_s > COMPUTE_S

    def end(self) -> None:
        """Nobody waits for the work any more."""
        self._is_over = True


class Invocation:
    """Of one row, once."""

    def __init__(
        self,
        plan: Plan,
        row: Mapping[str, object],
        make_calls: MakeCalls,
        why_failed: WhyFailed,
        on_finished: Callable[[OperatorFinished], None],
        threads: TenantThreads,
        tenant: str,
        share: Callable[[Callable[[FlowFact], None]], InvocationSharing] | None = None,
        limits: FlowLimits = LIMITS,
    ) -> None:
        """`why_failed`: by node and error, what the client is told, if not that it failed.
        `threads`: where it computes. `share`: for a plan that fetches results."""
        self._plan, self._row, self._threads, self._tenant = plan, row, threads, tenant
        self._limits = limits
        self._make_calls, self._why_failed, self._on_finished = make_calls, why_failed, on_finished
        self._facts: asyncio.Queue[FlowFact] = asyncio.Queue()
        self._group: GroupRead | None = None  # what its row was gathered to
        self._outputs: Mapping[str, object] | None = None
        self._is_over = False
        self._finish_reason = "stop"
        self._time = ComputeTime()
        self._sharing = None if share is None else share(self._facts.put_nowait)

    async def run(self) -> FlowResult:
        """Cancelled, its calls are left.

        Raises:
            KairosError: an operator has failed, and the row with it.
        """
        began_s = time.monotonic()
        executor = await self._beside(
            partial(FlowExecutor, self._plan, self._limits, self._time.is_spent)
        )
        calls = self._make_calls(self._facts.put_nowait)
        try:
            executor.begin()  # asks for rows: there is one
            self._facts.put_nowait(RowRead(0, self._row))
            self._facts.put_nowait(InputEnded())
            while not self._is_over:
                for fact, commands in await self._handled(executor):
                    if isinstance(fact, CallAnswered) and fact.finish_reason is not None:
                        self._finish_reason = fact.finish_reason
                    if self._sharing is not None:
                        self._sharing.handled(fact, commands, executor.is_in_flight)
                    for command in commands:
                        self._perform(command, fact, calls, began_s)
        finally:
            self._time.end()
            if self._sharing is not None:
                self._sharing.leave()
            await calls.abandon()
        took_s = time.monotonic() - began_s
        return FlowResult(self._outputs, executor.figures, took_s, self._finish_reason)

    async def _handled(self, executor: FlowExecutor) -> list[tuple[FlowFact, list[FlowCommand]]]:
        """All facts that are here, each with what is to be done about it."""
        facts = [await self._facts.get()]
        while not self._facts.empty():
            facts.append(self._facts.get_nowait())
        return await self._beside(lambda: [(fact, executor.handle(fact)) for fact in facts])

    async def _beside(self, work: Callable[[], _T]) -> _T:
        return await self._threads.run(self._tenant, partial(self._time.spend_on, work))

    def _perform(
        self, command: FlowCommand, fact: FlowFact, calls: RunCalls, began_s: float
    ) -> None:
        """Raises KairosError: the row has failed."""
        if isinstance(command, CallCommand):
            calls.begin(command)
            return
        match command:
            case KeepResult():
                self._on_finished(_finished(command, fact, time.monotonic() - began_s))
            case FetchCached():
                assert self._sharing is not None
                self._sharing.fetch(command)
            case WriteRow(values=values):
                self._outputs = values
            case FailRow(node=node, error=error):
                raise self._why_failed(node, error) or OperatorBroke(f"operator '{node}': {error}")
            case GatherRow(key=key, value=value):
                self._group = GroupRead(0, key, [value])
            case ReadGroups():
                if self._group is not None:
                    self._facts.put_nowait(self._group)
                self._group = None
                self._facts.put_nowait(GroupsEnded())
            case EndRun():
                self._is_over = True


def _finished(command: KeepResult, fact: FlowFact, at_s: float) -> OperatorFinished:
    """`fact`: what led to it."""
    if command.origin != "called" or not isinstance(fact, CallAnswered):
        return OperatorFinished(operator=command.node, at_s=at_s, merged=True)
    return OperatorFinished(
        operator=command.node,
        at_s=at_s,
        prompt_tokens=fact.prompt_tokens,
        completion_tokens=fact.completion_tokens,
        cached_tokens=fact.cached_tokens,
    )
