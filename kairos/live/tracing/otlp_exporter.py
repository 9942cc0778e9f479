"""Spans -> OpenTelemetry's, and to a collector by OTLP over HTTP, with its own exporter.

Its spans are made here, not by its tracer: ids must be known before a span ends (the engine hangs
its spans below), and nothing of it should run where calls are served.
"""

import logging
from collections.abc import Sequence
from typing import Any

from kairos import __version__
from kairos.errors import SetupError
from kairos.live.tracing.span import TraceSpan
from kairos.telemetry_settings import TelemetrySettings

_TIMEOUT_S = 5.0
_SAMPLED = 1
_LOGGERS = "opentelemetry"  # whose names begin so


class OtlpExporter:
    """Called with spans, it sends them: from any one thread. `close` ends what it waits for."""

    def __init__(self, settings: TelemetrySettings) -> None:
        """Raises SetupError: OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError:
            raise SetupError(
                "[telemetry] needs OpenTelemetry: pip install opentelemetry-sdk "
                "opentelemetry-exporter-otlp-proto-http"
            ) from None
        # What it says of each request that fails is said once, by the queue; and what a client says
        # that is no tracestate is not for the log.
        logging.getLogger(_LOGGERS).setLevel(logging.CRITICAL)
        self._exporter: Any = OTLPSpanExporter(endpoint=settings.traces_url, timeout=_TIMEOUT_S)
        self._resource = Resource.create(
            {"service.name": settings.service_name, "service.version": __version__}
        )
        self._scope = InstrumentationScope("kairos", __version__)

    def __call__(self, spans: Sequence[TraceSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        made = [self._made(each) for each in spans]
        return bool(self._exporter.export(made) is SpanExportResult.SUCCESS)

    def close(self) -> None:
        self._exporter.shutdown()

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
