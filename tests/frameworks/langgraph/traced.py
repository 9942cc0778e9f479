"""The flow, traced by OpenTelemetry as its own program would be: a span for each agent, whose
context goes along with its calls. python traced.py COLLECTOR FLOW QUESTION ..."""

import functools
import os
import runpy
import sys

os.environ.pop("OTEL_SDK_DISABLED", None)

import openai
from langgraph.graph import StateGraph
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

collector, *argv = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": "agents"}))
exporter = OTLPSpanExporter(endpoint=f"{collector}/v1/traces")
provider.add_span_processor(BatchSpanProcessor(exporter))
tracer = provider.get_tracer("agents")
add_node = StateGraph.add_node


def traced_node(graph, name, act):
    if name == "gather" or not callable(act):
        return add_node(graph, name, act)

    @functools.wraps(act)
    async def traced(state):
        with tracer.start_as_current_span(f"invoke_agent {name}"):
            return await act(state)

    return add_node(graph, name, traced)


async def prepare(_client, request):
    inject(request.headers)


StateGraph.add_node = lambda graph, name, act=None, **more: (
    add_node(graph, name, act, **more) if more or act is None else traced_node(graph, name, act)
)
openai.AsyncOpenAI._prepare_request = prepare
sys.argv = argv
with tracer.start_as_current_span("invoke_workflow report"):
    runpy.run_path(argv[0], run_name="__main__")
provider.shutdown()
