"""Spans -> OpenTelemetry's, and to a collector by OTLP over HTTP: its own processor, its exporter.

Its spans are made here, not by its tracer: ids must be known before a span ends (the engine hangs
its spans below). They are sent by a thread, many at once. A collector that is slow or away harms no
call: what does not fit is dropped, and so is what could not be sent. Both are counted and logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos import __version__
from kairos.core.errors import SetupError
from kairos.observe.tracing.span import TraceSpan
from kairos.settings.telemetry import TelemetrySettings

logger = logging.getLogger(__name__)

MAX_SPANS = 20_000  # that wait: about 20 MB
AT_ONCE = 64  # in a request: to turn them into bytes takes the interpreter's lock for 3 ms
_PAUSE_MS = 1_000
_TIMEOUT_S = 5.0
_LAST_WORDS_S = 3.0
_SAMPLED = 1
_LOGGERS = "opentelemetry"  # whose names begin so


class OtlpExporter:
    """`add` spans; at the end `finish` and `close`."""

    def __init__(self, settings: TelemetrySettings) -> None:
        """Raises SetupError: OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError:
            raise SetupError(
                "[telemetry] needs OpenTelemetry: pip install opentelemetry-sdk "
                "opentelemetry-exporter-otlp-proto-http"
            ) from None
        # Of requests that fail one line is enough, ours; and what a client calls a tracestate, and
        # is none, is not for the log.
        logging.getLogger(_LOGGERS).setLevel(logging.CRITICAL)
        self.sending = CountedExporter(
            OTLPSpanExporter(endpoint=settings.traces_url, timeout=_TIMEOUT_S)
        )
        self._processor: Any = BatchSpanProcessor(
            cast(Any, self.sending),
            max_queue_size=MAX_SPANS,
            schedule_delay_millis=_PAUSE_MS,
            max_export_batch_size=AT_ONCE,
        )
        self._resource = Resource.create(
            {"service.name": settings.service_name, "service.version": __version__}
        )
        self._scope = InstrumentationScope("kairos", __version__)

    def add(self, spans: Iterable[TraceSpan]) -> None:
        for span in spans:
            if self.sending.may_wait():
                self._processor.on_end(self._made(span))

    async def finish(self) -> None:
        """Send the spans that wait, for three seconds at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._processor.shutdown), _LAST_WORDS_S)

    def close(self) -> None:
        """Give up the spans that wait. It blocks while a request is under way."""
        self.sending.shutdown()
        self._processor.shutdown()

    def _made(self, span: TraceSpan) -> Any:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
        from opentelemetry.trace.span import TraceState

        state = TraceState.from_header([span.state]) if span.state else TraceState()

        def context(span_id: str, *, is_remote: bool) -> SpanContext:
            ids = int(span.trace_id, 16), int(span_id, 16)
            return SpanContext(*ids, is_remote, TraceFlags(_SAMPLED), state)

        parent = span.parent_id
        return ReadableSpan(
            span.name,
            context(span.span_id, is_remote=False),
            None if parent is None else context(parent, is_remote=span.kind == "server"),
            self._resource,
            dict(span.attributes),
            [Event(each.name, dict(each.attributes), each.at * 1_000) for each in span.events],
            kind=SpanKind[span.kind.upper()],
            status=Status(StatusCode.UNSET)
            if span.error is None
            else Status(StatusCode.ERROR, span.error),
            start_time=span.began_at * 1_000,
            end_time=span.ended_at * 1_000,
            instrumentation_scope=self._scope,
        )


class CountedExporter(Collector):
    """An exporter of OpenTelemetry with its figures. The processor's thread calls `export`."""

    def __init__(self, exporter: Any, *, max_spans: int = MAX_SPANS) -> None:
        self._exporter, self._max_spans = exporter, max_spans
        self._added = self.sent = self.dropped = self.failed = 0
        self._is_failing = False

    def may_wait(self) -> bool:
        """Return whether one more span may wait to be sent. A refused span is counted."""
        if self._added - self.sent - self.failed < self._max_spans:
            self._added += 1
            return True
        if not self.dropped:
            logger.warning("spans are dropped: %d wait already", self._max_spans)
        self.dropped += 1
        return False

    def export(self, spans: Sequence[Any]) -> Any:
        try:
            result = self._exporter.export(spans)
        except Exception:
            self._count(spans, is_sent=False)
            raise
        self._count(spans, is_sent=result.name == "SUCCESS")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _count(self, spans: Sequence[Any], *, is_sent: bool) -> None:
        if is_sent:
            self.sent += len(spans)
        else:
            self.failed += len(spans)
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            if is_sent:
                logger.warning("the collector takes spans again; %d are lost", self.failed)
            else:
                logger.warning("the collector does not take spans; calls go on without")

    def collect(self) -> Iterator[Metric]:
        for name, count, documentation in (
            ("sent", self.sent, "Spans that the collector took"),
            ("dropped", self.dropped, "Spans for which there was no room to wait"),
            ("failed", self.failed, "Spans that the collector did not take"),
        ):
            yield CounterMetricFamily(f"kairos_spans_{name}", documentation, value=count)
