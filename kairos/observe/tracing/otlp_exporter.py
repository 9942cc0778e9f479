"""Export of spans to a collector by OTLP over HTTP, with OpenTelemetry's processor and exporter.

Spans are created here, not by OpenTelemetry's tracer: ids must be known before a span ends, since
the engine's spans refer to them. A thread sends them in batches. A slow or unavailable collector
delays no call: spans beyond the limit are dropped, and so are spans that could not be sent. Both
are counted and logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kairos import __version__
from kairos.core import SetupError
from kairos.observe.families import counter
from kairos.observe.tracing.trace_context import TraceSpan
from kairos.settings import TelemetrySettings

logger = logging.getLogger(__name__)

MAX_SPANS = 20_000  # maximum waiting spans: about 20 MB
AT_ONCE = 64  # spans per request: encoding them holds the interpreter's lock for 3 ms
_PAUSE_MS = 1_000
_TIMEOUT_S = 5.0
_LAST_WORDS_S = 3.0
_SAMPLED = 1
_LOGGERS = "opentelemetry"  # prefix of the names of its loggers


class OtlpExporter:
    """Exporter of spans over OTLP. `add` spans; at the end call `finish` and `close`."""

    def __init__(self, settings: TelemetrySettings) -> None:
        """Create the exporter. Raises SetupError: OpenTelemetry is not installed."""
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
        # Kairos logs failed requests itself, and a client's invalid tracestate is not worth a line.
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
        """Send the waiting spans, for three seconds at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._processor.shutdown), _LAST_WORDS_S)

    def close(self) -> None:
        """Drop the waiting spans. Blocks while a request is under way."""
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
    """OpenTelemetry exporter with metrics. `export` is called by the processor's thread."""

    def __init__(self, exporter: Any, *, max_spans: int = MAX_SPANS) -> None:
        self._exporter, self._max_spans = exporter, max_spans
        self._added = self.sent = self.dropped = self.failed = 0
        self._is_failing = False

    def may_wait(self) -> bool:
        """Return whether one more span may wait to be sent. Refusals are counted."""
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
            ("sent", self.sent, "Spans accepted by the collector"),
            ("dropped", self.dropped, "Spans dropped because too many were waiting"),
            ("failed", self.failed, "Spans that the collector did not accept"),
        ):
            yield counter(f"kairos_spans_{name}", documentation, count)
