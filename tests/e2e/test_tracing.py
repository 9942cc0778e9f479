"""Traces of calls and workflows, as a collector receives them."""

import asyncio

import aiohttp
import pytest
from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kairos.core import Arrived, Finished
from kairos.settings import TelemetrySettings
from tests.support.otlp import collecting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-{PARENT}-0{flag}" for flag in (1, 0))
CALL, QUEUE, ATTEMPT = "POST /v1/chat/completions", "queue", "chat tiny"
ONE = (CALL, (QUEUE,), (ATTEMPT,))
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


@pytest.fixture
async def collector():
    async with collecting() as made:
        yield made


def to(collector, **given):
    return TelemetrySettings(otlp_endpoint=collector.url, **given)


@pytest.fixture
async def served(kairos, engine, collector):
    return await kairos(engine.url, telemetry=to(collector))


async def answered(request):
    content = {"role": "assistant", "content": "a secret answer"}
    return aiohttp.web.json_response({"choices": [{"message": content}], "usage": USAGE})


async def test_a_call_goes_on_in_its_clients_trace_and_the_engines_spans_below_it(
    served, engine, collector
):
    engine.answer = answered
    headers = {"traceparent": SAMPLED, "tracestate": "vendor=x", "X-Kairos-Agent": "router"}
    assert (await served.chat(headers, max_tokens=9)).status == 200
    await collector.having(3)
    (call,) = collector.children(PARENT)
    assert collector.tree(call) == ONE
    queue, attempt = collector.children(call)
    assert {each.trace_id for each in collector.spans} == {TRACE}
    assert [each.kind for each in (call, queue, attempt)] == ["server", "internal", "client"]
    assert {each.service for each in collector.spans} == {"kairos"}
    assert {each.span.trace_state for each in collector.spans} == {"vendor=x"}
    sent = engine.calls[0].headers
    assert sent["traceparent"] == f"00-{TRACE}-{attempt.id}-01"
    assert sent["tracestate"] == "vendor=x"
    host, port = engine.url.removeprefix("http://").split(":")
    said = attempt.attributes
    assert said.pop("gen_ai.conversation.id") == TRACE
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kairos",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.agent.name": "router",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "server.address": host,
        "server.port": int(port),
        "kairos.attempt": 1,
        "kairos.expected_cached_tokens": 0,
    } | {name: value for name, value in said.items() if name.startswith("gen_ai.response")}
    assert call.attributes["http.route"] == "/v1/chat/completions"
    assert call.began == queue.began <= queue.ended == attempt.began <= attempt.ended == call.ended
    assert not any(each.failed for each in collector.spans)


async def test_what_a_client_says_that_is_no_tracestate_is_not_in_the_log(
    served, engine, collector, caplog
):
    engine.answer = answered
    headers = {"traceparent": SAMPLED, "tracestate": "words of a client"}
    assert (await served.chat(headers)).status == 200
    await collector.having(3)
    assert "words of a client" not in caplog.text


async def test_no_word_of_prompts_and_answers_is_sent(served, engine, collector):
    engine.answer = answered
    secret = [{"role": "user", "content": "a secret prompt"}]
    await served.chat({"traceparent": SAMPLED}, messages=secret)
    await collector.having(3)
    assert b"secret" not in b"".join(collector.bodies)


async def test_a_recorded_call_is_an_exemplar_of_how_long_calls_take(served, collector):
    await served.chat({"traceparent": NOT_SAMPLED})
    await served.chat({"traceparent": SAMPLED})
    await collector.having(3)
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    text = (await served.ask("GET", "/metrics", headers=accept)).body.decode()
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples if s.exemplar]
    assert {sample.exemplar.labels["trace_id"] for sample in samples} == {TRACE}
    assert {sample.name for sample in samples} >= {
        "kairos_call_seconds_bucket",
        "kairos_queue_seconds_bucket",
    }


async def test_what_the_client_does_not_sample_is_not_recorded(served, engine, collector):
    await served.chat({"traceparent": NOT_SAMPLED})
    await served.chat({"traceparent": SAMPLED})
    await collector.having(3)
    assert len(collector.spans) == 3
    assert engine.calls[0].headers["traceparent"] == NOT_SAMPLED


async def test_of_workflows_without_a_trace_a_share_is_recorded_whole(kairos, engine, collector):
    served = await kairos(engine.url, telemetry=to(collector, sample_ratio=0.5))
    names = [f"w{number}" for number in range(40)]
    for name in names * 2:
        await served.chat({"X-Kairos-Workflow-Id": name, "X-Kairos-App": "report"})
    for name in names:
        await served.ask("POST", f"/v1/workflows/{name}/end")
    recorded = {each.request.workflow_id for each in served.facts.all(Arrived) if _trace(each)}
    assert 5 < len(recorded) < 35
    await collector.having(7 * len(recorded))
    roots = [each for each in collector.spans if each.parent is None]
    assert {each.attributes["gen_ai.conversation.id"] for each in roots} == recorded
    for root in roots:
        assert collector.tree(root) == ("invoke_workflow report", ONE, ONE)
        assert root.attributes["kairos.calls"] == 2
        first, second = collector.children(root)
        assert root.began <= first.began
        assert second.ended <= root.ended
    flags = [call.headers["traceparent"][-2:] for call in engine.calls]
    assert flags.count("01") == 2 * len(recorded)  # engines record the same


def _trace(arrived):
    return arrived.request.trace_id


async def test_each_attempt_is_a_span_and_the_first_token_an_event(kairos, engines, collector):
    pair = await engines(), await engines()
    sent = []
    chunk = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

    def first_fails(engine):
        stream = engine.stream(chunk, chunk, b"data: [DONE]\n\n")
        engine.release(3)

        async def answer(request):
            sent.append(request.headers["traceparent"])
            return aiohttp.web.Response(status=500) if len(sent) == 1 else await stream(request)

        return answer

    for engine in pair:
        engine.answer = first_fails(engine)
    served = await kairos(*(each.url for each in pair), telemetry=to(collector))
    assert (await served.chat({"traceparent": SAMPLED}, stream=True)).status == 200
    await collector.having(5)
    (call,) = collector.children(PARENT)
    assert collector.tree(call) == (CALL, (QUEUE,), (ATTEMPT,), (QUEUE,), (ATTEMPT,))
    _, first, _, second = collector.children(call)
    assert [first.failed, second.failed, call.failed] == [True, False, False]
    assert "error.type" in first.attributes
    assert "error.type" not in second.attributes
    assert [first.events, [name for name, _ in second.events]] == [[], ["first_token"]]
    assert second.began <= second.events[0][1] <= second.ended
    assert sent == [f"00-{TRACE}-{each.id}-01" for each in (first, second)]


async def test_a_call_that_is_refused_is_a_span_with_its_error(served, collector):
    answer = await served.chat({"traceparent": SAMPLED}, model="none such")
    assert answer.status == 404
    (call, queue) = sorted(await collector.having(2), key=lambda each: each.kind == "internal")
    assert (call.failed, call.attributes["error.type"]) == (True, answer.json()["error"]["code"])
    assert queue.parent == call.id


async def test_a_client_that_leaves_ends_the_trace(served, engine, collector):
    engine.answer = engine.when_released
    asked = asyncio.create_task(served.chat({"traceparent": SAMPLED}))
    await engine.called()
    asked.cancel()
    await collector.having(3)
    (call,) = collector.children(PARENT)
    assert call.attributes["error.type"] == "cancelled"


async def test_a_collector_that_is_away_harms_no_call_and_what_is_lost_is_counted(
    served, collector
):
    collector.status = 400  # an answer after which nothing is tried again
    assert (await served.chat({"traceparent": SAMPLED})).status == 200

    async def counted():
        text = (await served.ask("GET", "/metrics")).body.decode()
        lines = (line.split() for line in text.splitlines() if line.startswith("kairos_spans"))
        return {line[0]: float(line[1]) for line in lines if "_total" in line[0]}

    async with asyncio.timeout(60):
        while (await counted())["kairos_spans_failed_total"] < 3:
            await asyncio.sleep(0.05)
    collector.status = 200
    assert (await served.chat({"traceparent": SAMPLED})).status == 200
    await collector.having(3)
    async with asyncio.timeout(60):
        while (await counted())["kairos_spans_sent_total"] < 3:
            await asyncio.sleep(0.05)


async def test_what_is_left_at_the_end_is_sent(engine, collector):
    from tests.e2e.served import serving

    async with serving(engine.url, telemetry=to(collector)) as served:
        await served.chat({"traceparent": SAMPLED})
    assert len(collector.spans) == 3


async def test_the_spans_of_an_openai_client_and_of_kairos_are_one_tree(served, engine, collector):
    engine.answer = answered
    provider = TracerProvider(resource=Resource.create({"service.name": "agents"}))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces"))
    )
    tracer = provider.get_tracer("agents")

    async def ask(client, name):
        with tracer.start_as_current_span(f"invoke_agent {name}", kind=trace.SpanKind.INTERNAL):
            headers = {}
            inject(headers)
            messages = [{"role": "user", "content": name}]
            await client.chat.completions.create(
                model="tiny", messages=messages, extra_headers=headers
            )

    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client:
        with tracer.start_as_current_span("invoke_workflow report"):
            await ask(client, "planner")
            await asyncio.gather(ask(client, "researcher"), ask(client, "critic"))
    await asyncio.to_thread(provider.shutdown)
    await collector.having(13)
    (root,) = (each for each in collector.spans if each.parent is None)
    tree = collector.tree(root)
    assert tree[0] == "invoke_workflow report"
    assert sorted(tree[1:]) == sorted(
        (f"invoke_agent {name}", ONE) for name in ("planner", "researcher", "critic")
    )
    assert {each.service for each in collector.spans} == {"agents", "kairos"}
    workflows = {each.request.workflow_id for each in served.facts.all(Arrived)}
    assert workflows == {root.trace_id}  # what is traced as one is one workflow to Kairos


async def test_nothing_is_changed_where_nothing_is_traced(kairos, engine):
    served = await kairos(engine.url)
    await served.chat({"traceparent": SAMPLED})
    assert engine.calls[0].headers["traceparent"] == SAMPLED
    assert served.facts.all(Arrived)[0].request.trace_id is None
    assert served.facts.all(Finished)
