"""Invocation of a flow: its row goes through the executor, to its outputs.

The executor works in a thread: templates come from anyone, and must not block the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from kairos.core import KairosError
from kairos.host import TenantThreads
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

COMPUTE_S = 10.0  # seconds of processor time for everything but calls
FUNCTIONS = 4  # run at once by one invocation
# The queue orders calls; an invocation has at most this many there at once.
LIMITS = FlowLimits(
    capacity=32,
    functions=FUNCTIONS,
    processors=32,
    max_open_rows=1,
    row_steps=100_000,
    row_bytes=64 << 20,
)


class OperatorFinished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an operator's call.

    `operator`: its name; in a body with its rounds and items (`refine.2.better`). `merged`: it is
    the result of an equal call.
    """

    operator: str
    at_s: float  # since the invocation began
    merged: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class FlowResult(msgspec.Struct, frozen=True):
    """Result of an invocation. `outputs`: by column; None if the row was filtered out."""

    outputs: Mapping[str, object] | None
    figures: FlowFigures
    took_s: float
    finish_reason: str = "stop"  # of the last LLM call


MakeCalls = Callable[[Callable[[FlowFact], None]], RunCalls]
WhyFailed = Callable[[str, str], KairosError | None]


class ComputeTime:
    """Processor time that an invocation has used in threads, one at a time."""

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
        """Return whether the time is used up, or the invocation ended. The work itself asks."""
        return self._is_over or self._used_s + time.thread_time() - self._began_s > COMPUTE_S

    def end(self) -> None:
        """Stop running work: nobody waits for it any more."""
        self._is_over = True


class Invocation:
    """Run of a flow for a single row."""

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
        """Prepare the run of a row.

        `why_failed`: returns the client's error for a node and its message; None for the usual one.
        `threads`: where it computes. `share`: makes the sharing of results, for a plan that fetches
        results.
        """
        self._plan, self._row, self._threads, self._tenant = plan, row, threads, tenant
        self._limits = limits
        self._make_calls, self._why_failed, self._on_finished = make_calls, why_failed, on_finished
        self._facts: asyncio.Queue[FlowFact] = asyncio.Queue()
        self._group: GroupRead | None = None  # group of its row
        self._outputs: Mapping[str, object] | None = None
        self._is_over = False
        self._finish_reason = "stop"
        self._time = ComputeTime()
        self._sharing = None if share is None else share(self._facts.put_nowait)

    async def run(self) -> FlowResult:
        """Run the flow. Its calls are cancelled with it.

        Raises:
            KairosError: an operator failed, and the row with it.
        """
        began_s = time.monotonic()
        executor = await self._beside(
            partial(FlowExecutor, self._plan, self._limits, self._time.is_spent)
        )
        calls = self._make_calls(self._facts.put_nowait)
        try:
            executor.start()  # it asks for rows: there is one
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
        """Return all waiting facts, each with the executor's commands."""
        facts = [await self._facts.get()]
        while not self._facts.empty():
            facts.append(self._facts.get_nowait())
        return await self._beside(lambda: [(fact, executor.handle(fact)) for fact in facts])

    async def _beside(self, work: Callable[[], _T]) -> _T:
        return await self._threads.run(self._tenant, partial(self._time.spend_on, work))

    def _perform(
        self, command: FlowCommand, fact: FlowFact, calls: RunCalls, began_s: float
    ) -> None:
        """Carry out a command. Raises KairosError: the row has failed."""
        if isinstance(command, CallCommand):
            calls.perform(command)
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
    """Return the event of a result. `fact`: what led to the result."""
    if command.origin != "called" or not isinstance(fact, CallAnswered):
        return OperatorFinished(operator=command.node, at_s=at_s, merged=True)
    return OperatorFinished(
        operator=command.node,
        at_s=at_s,
        prompt_tokens=fact.prompt_tokens,
        completion_tokens=fact.completion_tokens,
        cached_tokens=fact.cached_tokens,
    )
