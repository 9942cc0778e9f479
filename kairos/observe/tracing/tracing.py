"""Tracing of a process: decides which calls are recorded, and connects the other modules."""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Protocol

import msgspec
from prometheus_client.registry import Collector

from kairos.core import FactSink, Observer, Request
from kairos.observe.tracing.call_trace import CallTrace, TracedFacts
from kairos.observe.tracing.otlp_exporter import OtlpExporter
from kairos.observe.tracing.trace_context import (
    TRACE_PARENT_HEADER,
    TraceContext,
    context_sent,
    is_sampled,
    root_span_id,
    traceparent,
    workflow_trace_id,
)
from kairos.observe.tracing.workflow_spans import WorkflowSpans
from kairos.settings import TelemetrySettings


class TracedRequest(Protocol):
    """HTTP request of a call."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    trace: CallTrace | None


class Tracing:
    """Tracing of one process."""

    def __init__(self, exporter: OtlpExporter, *, ratio: float, salt: str) -> None:
        """Start tracing.

        Args:
            exporter: exporter of the spans.
            ratio: share of workflows' own traces to record.
            salt: shared by the processes that serve calls of the same workflows.
        """
        self.exporter, self._ratio, self.salt = exporter, ratio, salt
        self._dice = random.Random(os.urandom(16))  # noqa: S311 - ids, not secrets

    def follow(
        self, request: Request, asked: TracedRequest, facts: FactSink, *, streams: bool
    ) -> tuple[Request, FactSink]:
        """Record the call if its trace is recorded.

        Returns:
            The request, with its trace id if it is recorded, and the sink for its facts. The
                context for engines is put into the headers.
        """
        context = context_sent(asked.headers) or self._own(request)
        if not context.is_recorded:
            self._tell_engine(asked.headers, context)
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

    def _tell_engine(self, headers: MutableMapping[bytes, bytes], context: TraceContext) -> None:
        """Tell the engine not to record the call either, unless the client sent a context."""
        if not context.parent_id:
            headers[TRACE_PARENT_HEADER] = traceparent(
                context.trace_id, self._new_id(), is_recorded=False
            )

    def _new_id(self) -> str:
        return f"{self._dice.getrandbits(64) or 1:016x}"

    def workflows(self, idle_us: int) -> Observer:
        """Return an observer that creates the spans of whole workflows."""
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
