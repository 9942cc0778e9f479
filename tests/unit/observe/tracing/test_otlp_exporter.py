"""Spans on their way: bounded, and counted where they do not arrive."""

import asyncio
import socket

from opentelemetry.sdk.trace.export import SpanExportResult

from kairos.observe.tracing import otlp_exporter
from kairos.observe.tracing.otlp_exporter import CountedExporter, OtlpExporter
from kairos.observe.tracing.trace_context import TraceSpan
from kairos.settings import TelemetrySettings

SPAN = TraceSpan(
    name="a",
    kind="internal",
    trace_id="1" * 32,
    span_id="2" * 16,
    parent_id=None,
    began_at=0,
    ended_at=1,
)


class Answering:
    """OpenTelemetry's exporter: it returns the given results in turn."""

    def __init__(self, *results):
        self.results = list(results)

    def export(self, _spans):
        return self.results.pop(0)


def counts(exporter):
    return {family.name: family.samples[0].value for family in exporter.collect()}


def test_what_does_not_fit_is_dropped_and_counted_until_some_are_sent(caplog):
    exporter = CountedExporter(Answering(SpanExportResult.SUCCESS), max_spans=2)
    assert [exporter.may_wait() for _ in range(4)] == [True, True, False, False]
    exporter.export([SPAN])
    assert [exporter.may_wait() for _ in range(2)] == [True, False]
    assert counts(exporter) == {
        "kairos_spans_sent": 1,
        "kairos_spans_dropped": 3,
        "kairos_spans_failed": 0,
    }
    assert caplog.messages == ["spans are dropped: 2 wait already"]


def test_what_a_collector_does_not_take_is_counted_and_said_once(caplog):
    bad, good = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    exporter = CountedExporter(Answering(bad, bad, good))
    for _ in range(3):
        exporter.export([SPAN, SPAN])
    assert (exporter.sent, exporter.failed) == (2, 4)
    assert caplog.messages == [
        "the collector does not take spans; calls go on without",
        "the collector takes spans again; 4 are lost",
    ]


async def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(otlp_exporter, "_LAST_WORDS_S", 0.05)
    monkeypatch.setattr(otlp_exporter, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        exporter = OtlpExporter(TelemetrySettings(otlp_endpoint=url))
        exporter.add([SPAN] * 200)
        async with asyncio.timeout(60):
            await exporter.finish()
            exporter.close()
    assert exporter.sending.sent == 0
