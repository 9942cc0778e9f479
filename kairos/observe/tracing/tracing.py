"""Tracing of a process: decides which calls are recorded, and connects the other modules."""

import contextlib
import os
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

import msgspec
from prometheus_client.registry import Collector

from kairos.core import (
    Arrived,
    Cancelled,
    FactSink,
    Failed,
    Finished,
    Observer,
    Record,
    Request,
    WorkflowEnded,
    WorkflowKey,
    workflow_key,
)
from kairos.observe.tracing.call_trace import CallTrace, TracedFacts
from kairos.observe.tracing.otlp_exporter import OtlpExporter
from kairos.observe.tracing.trace_context import (
    TRACE_PARENT_HEADER,
    TraceContext,
    TraceSpan,
    context_sent,
    is_sampled,
    root_span_id,
    traceparent,
    workflow_trace_id,
)
from kairos.settings import TelemetrySettings

MAX_WORKFLOWS = 10_000  # beyond, the longest silent one ends early, with a span of its state


class TracedRequest(Protocol):
    method: str
    path: str
    headers: dict[bytes, bytes]
    trace: CallTrace | None


class Tracing:
    def __init__(self, exporter: OtlpExporter, *, ratio: float, salt: str) -> None:
        """Start tracing. `ratio`: share of workflows' own traces to record.

        `salt` is shared by the processes that serve calls of the same workflows.
        """
        self.exporter, self._ratio, self.salt = exporter, ratio, salt
        self._dice = random.Random(os.urandom(16))  # noqa: S311 - ids, not secrets

    def follow(
        self, request: Request, asked: TracedRequest, facts: FactSink, *, streams: bool
    ) -> tuple[Request, FactSink]:
        """Record the call if its trace is recorded.

        Return the request, with its trace id if it is recorded, and the sink for its facts. The
        context for engines is put into the headers.
        """
        context = context_sent(asked.headers) or self._own(request)
        if not context.is_recorded:
            if not context.parent_id:  # the client sent no context: the engine records none, too
                asked.headers[TRACE_PARENT_HEADER] = traceparent(
                    context.trace_id, self._new_id(), is_recorded=False
                )
            return request, facts
        request = msgspec.structs.replace(request, trace_id=context.trace_id)
        asked.trace = CallTrace(
            context,
            request,
            asked.method,
            asked.path,
            streams=streams,
            now=facts.now,
            new_id=self._new_id,
            emit=self.exporter.add,
        )
        return request, TracedFacts(facts, asked.trace)

    def _own(self, request: Request) -> TraceContext:
        whose = request.tenant, request.workflow_id
        trace_id = workflow_trace_id(self.salt, *whose, request.arrived_at)
        if not is_sampled(trace_id, self._ratio):
            return TraceContext(trace_id, "", is_recorded=False)
        return TraceContext(trace_id, root_span_id(trace_id), is_recorded=True)

    def _new_id(self) -> str:
        return f"{self._dice.getrandbits(64) or 1:016x}"

    def workflows(self, idle_us: int) -> Observer:
        return WorkflowSpans(self.salt, self.exporter.add, idle_us=idle_us)


@contextlib.asynccontextmanager
async def open_tracing(
    settings: TelemetrySettings | None, salt: str | None = None
) -> AsyncIterator[Tracing | None]:
    """Open tracing; None if it is not configured.

    Without `salt` the process is assumed to be alone.

    Raises:
        SetupError: OpenTelemetry is not installed.
    """
    if settings is None:
        yield None
        return
    exporter = OtlpExporter(settings)
    try:
        yield Tracing(exporter, ratio=settings.sample_ratio, salt=salt or os.urandom(16).hex())
        await exporter.finish()
    finally:
        exporter.close()


def tracing_observers(
    tracing: Tracing | None, idle_us: int, show: Callable[[Collector], None]
) -> tuple[Observer, ...]:
    """Return the observers of all records needed for tracing. `show` is called with its metrics."""
    if tracing is None:
        return ()
    show(tracing.exporter.sending)
    return (tracing.workflows(idle_us),)


class _Course(msgspec.Struct, gc=False):
    trace_id: str
    request: Request  # its first request
    told_at: int  # time of the latest fact about its calls
    calls: int = 0
    failed: int = 0


class WorkflowSpans:
    """Observer of records that emits spans of whole workflows, in the workflows' own traces.

    If its calls continue a trace of the client, that has a span of its own, and none is created.
    The process that sees all calls of a workflow and its end creates the span. The span's id is
    derived from the trace's, so calls can name it as their parent before it exists. Recorded calls
    are recognised by the trace id in their requests.
    """

    def __init__(
        self, salt: str, emit: Callable[[Iterable[TraceSpan]], None], *, idle_us: int
    ) -> None:
        """`salt`: as of `Tracing`. `idle_us`: silence after which a workflow has ended."""
        self._salt, self._emit, self._idle_us = salt, emit, idle_us
        self._open: OrderedDict[WorkflowKey, _Course] = OrderedDict()  # by their latest fact
        self._calls: dict[str, WorkflowKey] = {}

    def __call__(self, record: Record) -> None:
        event = record.event
        if type(event) is Arrived:
            if event.request.trace_id is not None:
                self._arrived(event.request, event.request.trace_id, record.at)
        elif type(event) is Finished or type(event) is Failed or type(event) is Cancelled:
            key = self._calls.pop(event.request_id, None)
            if key is not None and (course := self._open.get(key)) is not None:
                course.told_at = record.at
                course.failed += type(event) is not Finished
                self._open.move_to_end(key)
        elif type(event) is WorkflowEnded:
            key = event.tenant, event.workflow_id
            if key in self._open:
                self._end_workflow(key, record.at, error="cancelled" if event.cancelled else None)

    def _arrived(self, request: Request, trace_id: str, at: int) -> None:
        key = workflow_key(request)
        own = workflow_trace_id(self._salt, *key, request.arrived_at)
        if own != trace_id:
            return
        course = self._open.get(key)
        if course is None or course.trace_id != own:  # another day
            if course is not None:
                self._end_workflow(key, course.told_at)
            self._make_room(at)
            course = self._open[key] = _Course(trace_id, request, at)
        course.told_at, course.calls = at, course.calls + 1
        self._calls[request.id] = key
        self._open.move_to_end(key)

    def _make_room(self, at: int) -> None:
        while self._open:
            key, course = next(iter(self._open.items()))
            if len(self._open) < MAX_WORKFLOWS and course.told_at > at - self._idle_us:
                return
            self._end_workflow(key, course.told_at)

    def _end_workflow(self, key: WorkflowKey, at: int, error: str | None = None) -> None:
        course = self._open.pop(key)
        request = course.request
        said: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.conversation.id": request.workflow_id,
            "kairos.tenant": request.tenant,
            "kairos.calls": course.calls,
            "kairos.calls_failed": course.failed,
        }
        if request.app is not None:
            said["gen_ai.workflow.name"] = request.app
        if error is not None:
            said["error.type"] = error
        name = "invoke_workflow" if request.app is None else f"invoke_workflow {request.app}"
        span = TraceSpan(
            name=name,
            kind="internal",
            trace_id=course.trace_id,
            span_id=root_span_id(course.trace_id),
            parent_id=None,
            began_at=min(request.workflow_started_at, request.arrived_at),
            ended_at=max(at, course.told_at),
            attributes=said,
            error=error,
        )
        self._emit([span])
