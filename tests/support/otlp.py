"""A collector of OpenTelemetry's: it takes OTLP over HTTP, as protobuf, and keeps the spans."""

import asyncio
import gzip
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

LIMIT_S = 60


class Received:
    """A span, with plain values."""

    def __init__(self, span, resource):
        self.name, self.span = span.name, span
        self.trace_id, self.id = span.trace_id.hex(), span.span_id.hex()
        self.parent = span.parent_span_id.hex() or None
        self.kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower()
        self.attributes = {each.key: _plain(each.value) for each in span.attributes}
        self.events = [(each.name, each.time_unix_nano) for each in span.events]
        self.failed = span.status.code == Status.StatusCode.STATUS_CODE_ERROR
        self.began, self.ended = span.start_time_unix_nano, span.end_time_unix_nano
        self.service = {each.key: _plain(each.value) for each in resource.attributes}[
            "service.name"
        ]


def _plain(value):
    return getattr(value, value.WhichOneof("value"))


class Collector:
    def __init__(self):
        self.url = ""
        self.spans, self.bodies = [], []
        self.status = 200  # that it answers
        self._changed = asyncio.Event()

    async def take(self, request):
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.status == 200:
            self.bodies.append(body)
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in each.scope_spans:
                    self.spans += [Received(span, each.resource) for span in scope.spans]
        self._changed.set()
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, status=self.status, content_type="application/x-protobuf")

    async def until(self, condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def having(self, number):
        """The spans, once there are so many."""
        await self.until(lambda: len(self.spans) >= number)
        return self.spans

    def count(self, name):
        return sum(each.name == name for each in self.spans)

    def children(self, span):
        """Of a span, or of an id; by when they began."""
        parent = span if isinstance(span, str) else span.id
        found = [each for each in self.spans if each.parent == parent]
        return sorted(found, key=lambda each: (each.began, each.ended))

    def tree(self, span):
        """Names, as nested tuples."""
        return (span.name, *(self.tree(each) for each in self.children(span)))


@asynccontextmanager
async def collecting():
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
