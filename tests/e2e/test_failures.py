"""Engines that are away, go away, and come back."""

import asyncio

import pytest
from aiohttp import web

from kairos.cluster.local import local_control
from kairos.core import SECOND, Arrived, Bounced, Failed, InstanceJoined, InstanceLeft, Tick
from kairos.engines import monitor
from kairos.observe import telemetry
from kairos.request import body

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def often(monkeypatch):
    """Look at engines all the time, so that no test waits for the next look."""
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.01)


@pytest.fixture
def seldom(monkeypatch):
    """Look at engines only when a call met trouble there."""
    monkeypatch.setattr(monitor, "INTERVAL_S", 1000)


async def three_asking(served):
    """Three calls, begun one after the other."""
    asking = []
    for number in (1, 2, 3):
        asking.append(asyncio.create_task(served.chat()))
        await served.facts.seen(Arrived, number)
    return asking


@pytest.mark.usefixtures("often")
async def test_kairos_starts_without_an_engine_and_uses_it_when_it_comes(
    kairos, engines, unused_port
):
    served = await kairos(f"http://127.0.0.1:{unused_port}", joins=0)
    (await served.chat()).is_to_be_retried("no_instance")
    assert (await served.ask("GET", "/health")).status == 503
    assert (await served.ask("GET", "/v1/models")).json()["data"] == []
    assert served.facts.all(Arrived) == []

    await engines(unused_port)
    await served.facts.seen(InstanceJoined)
    assert (await served.chat()).status == 200
    assert (await served.ask("GET", "/health")).status == 200


@pytest.mark.usefixtures("seldom")
async def test_a_call_that_finds_its_engine_gone_has_it_left_at_once(served, engine):
    await engine.stop()
    (await served.chat()).is_to_be_retried("upstream_unreachable")
    await served.facts.seen(InstanceLeft)

    (await served.chat()).is_to_be_retried("no_instance")
    assert [fact.reason for fact in served.facts.all(Failed)] == ["upstream_unreachable"]


@pytest.mark.usefixtures("seldom")
async def test_trouble_that_a_call_meets_during_a_look_leads_to_another_look(served, engine):
    healthy, resume = engine.probe, asyncio.Event()

    async def held(request):
        await resume.wait()
        return await healthy(request)

    engine.probe = held
    engine.answer = engine.stream(then=lambda transport: transport.abort())
    engine.release(2)
    looks = lambda: sum(probe.path == "/health" for probe in engine.probes)  # noqa: E731
    await served.chat()
    await engine.until(lambda: looks() == 2)
    await served.chat()
    resume.set()

    await engine.until(lambda: looks() == 3)


async def test_an_engine_may_be_named_as_clients_name_it(kairos, engine):
    served = await kairos(engine.url + "/v1/")
    await served.chat()

    assert engine.calls[0].path == "/v1/chat/completions"


@pytest.mark.usefixtures("often")
async def test_an_engine_that_comes_back_is_used_again(kairos, engines):
    first = await engines()
    served = await kairos(first.url)
    await served.chat()
    await first.stop()
    await served.facts.seen(InstanceLeft)
    again = await engines(int(first.url.rpartition(":")[2]))
    await served.facts.seen(InstanceJoined, 2)

    assert (await served.chat()).status == 200
    assert (len(first.calls), len(again.calls)) == (1, 1)


@pytest.mark.usefixtures("seldom")
async def test_one_call_finds_an_engine_dead_and_goes_elsewhere_and_no_other_follows_it(
    kairos, engines
):
    dead, alive = await engines(), await engines()
    served = await kairos(dead.url, alive.url, max_num_seqs=1)
    await dead.stop()

    answers = await asyncio.gather(*(served.chat() for _ in range(8)))

    assert [answer.status for answer in answers] == [200] * 8
    assert len(served.facts.all(Bounced)) == 1
    assert len(served.facts.all(InstanceLeft)) == 1


@pytest.mark.usefixtures("often")
async def test_what_waits_for_the_last_engine_is_refused_when_it_leaves(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    asking = await three_asking(served)

    async def unhealthy(_):
        return web.Response(status=503)

    engine.probe = unhealthy
    await served.facts.seen(InstanceLeft)
    refused = [await asking[1], await asking[2]]
    engine.release()

    assert (await asking[0]).status == 200  # what runs may end
    for each in refused:
        each.is_to_be_retried("no_instance")
    assert [fact.reason for fact in served.facts.all(Failed)] == ["no_instance"] * 2
    assert len(engine.calls) == 1


async def test_a_request_that_has_waited_as_long_as_it_may_is_refused(kairos, engine, monkeypatch):
    monkeypatch.setattr(local_control, "TICK_S", 0.01)
    engine.answer = engine.when_released
    served = await kairos(engine.url, max_num_seqs=1, max_wait_s=1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(served.chat())
        await engine.called()
        late = group.create_task(served.chat())
        await served.facts.seen(Failed)
        engine.release()

    late.result().is_to_be_retried("waited_too_long")
    assert running.result().status == 200
    [tick] = [r for r in served.facts.records if isinstance(r.event, Tick)]  # and no other
    assert [command.reason for command in tick.commands] == ["waited_too_long"]
    arrived = served.facts.all(Arrived)[-1].request.arrived_at
    assert tick.at >= arrived + SECOND


async def test_everybody_is_told_when_the_last_engine_dies(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    asking = await three_asking(served)
    await engine.called()
    await engine.stop()

    for answer in [await each for each in asking]:
        answer.is_to_be_retried(answer.error()["code"])


# Looking at engines ------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
async def test_one_slow_answer_is_not_taken_for_death_and_several_are(kairos, engine, monkeypatch):
    monkeypatch.setattr(monitor, "TIMEOUT_S", 0.02)
    served = await kairos(engine.url)
    healthy, slow = engine.probe, 0

    async def hang(_):
        nonlocal slow
        slow += 1
        engine.probe = hang if slow != monitor.SLOW_PROBES_ALLOWED else healthy
        await asyncio.Event().wait()

    engine.probe = hang
    await engine.until(lambda: slow == monitor.SLOW_PROBES_ALLOWED)
    here = len(engine.probes)
    await engine.until(lambda: len(engine.probes) >= here + 8)  # two looks that it answers
    assert served.facts.all(InstanceLeft) == []

    engine.probe = hang
    await served.facts.seen(InstanceLeft)
    assert slow == 2 * monitor.SLOW_PROBES_ALLOWED + 1
    assert "no answer within" in served.service.monitor.problems[engine.url[len("http://") :]]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/health", web.Response(status=503), "/health answered 503"),
        ("/health", web.Response(status=302, headers={"Location": "/v1/models"}), "answered 302"),
        ("/v1/models", web.Response(status=401), "/v1/models answered 401"),
        ("/v1/models", web.Response(text="{"), "names no model"),
        ("/v1/models", web.Response(text='{"data":[5,{}]}'), "names no model"),
        ("/v1/models", web.Response(body=b"\xff"), "names no model"),
    ],
)
async def test_an_engine_that_is_not_ready_is_not_used(served, engine, path, answer, problem):
    healthy = engine.probe

    async def broken(request):
        if request.raw_path != path:
            return await healthy(request)
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    engine.probe = broken
    await served.facts.seen(InstanceLeft)
    assert problem in served.service.monitor.problems[engine.url[len("http://") :]]
    engine.probe = healthy
    await served.facts.seen(InstanceJoined, 2)

    assert served.service.monitor.problems == {}


@pytest.mark.usefixtures("often")
async def test_what_an_engine_serves_from_now_on_is_noticed(served, engine):
    engine.models = ["tiny", "huge"]
    await served.facts.seen(InstanceJoined, 2)

    assert (await served.chat(model="huge")).status == 200
    listed = (await served.ask("GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["huge", "tiny"]


async def test_limits_that_come_in_the_last_piece_of_a_long_answer_are_read(kairos, engine):
    silent = engine.probe

    async def tell(request):
        if request.raw_path != "/metrics":
            return await silent(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(50):
            await answer.write(b"vllm:x 1\n" * 5_000)
        await answer.write(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n')
        return answer

    engine.probe = tell
    served = await kairos(engine.url)

    assert (await served.facts.seen(InstanceJoined)).instance.kv_tokens == 1584


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics"])
async def test_an_error_of_our_own_is_answered_like_any_other(
    kairos, engine, caplog, monkeypatch, path
):
    def broken(*_, **__):
        raise RuntimeError("a secret of the source code")

    monkeypatch.setattr(body, "read_body", broken)
    monkeypatch.setattr(telemetry.Telemetry, "families", broken)
    served = await kairos(engine.url)

    answer = await served.ask("POST" if "chat" in path else "GET", path, json={"messages": []})

    assert answer.status == 500
    assert answer.error()["code"] == "internal_error"
    assert b"secret" not in answer.body
    assert "a secret of the source code" in caplog.text
    caplog.clear()
    assert engine.calls == []
