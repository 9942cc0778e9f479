"""Instances that operators add and remove while calls run."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from kairos.core import (
    Arrived,
    InstanceJoined,
    InstanceLeft,
)
from kairos.engines import fleet
from kairos.settings import EngineSettings, Settings
from tests.e2e.client import LIMIT_S
from tests.support.engines.probes import probe_every

CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def name(engine):
    return engine.url.removeprefix("http://")


async def add(served, engine, **given):
    return await served.operate("POST", "instances", json={"url": engine.url, **given})


async def remove(served, engine):
    return await served.operate("DELETE", f"instances/{name(engine)}")


async def instances(served):
    answer = await served.operate("GET", "instances")
    assert answer.status == 200
    return {each["id"]: each for each in answer.json()["instances"]}


async def gone(served, engine):
    """Nothing outside says when; whoever removes an instance looks, too."""
    async with asyncio.timeout(LIMIT_S):
        while name(engine) in await instances(served):
            await asyncio.sleep(0.02)


@pytest.fixture
def looked(monkeypatch):
    """Wait until it was looked at what drains, again and again."""
    looks, draining = asyncio.Semaphore(0), fleet.Fleet.draining

    def counted(each):
        looks.release()
        return draining(each)

    async def again():
        while not looks.locked():
            await looks.acquire()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(3):
                await looks.acquire()

    monkeypatch.setattr(fleet.Fleet, "draining", counted)
    return again


async def asking(served, number=1, **fields):
    """Calls under way, begun one after the other."""
    calls = []
    for arrived in range(len(served.facts.all(Arrived)), len(served.facts.all(Arrived)) + number):
        calls.append(asyncio.create_task(served.chat(**fields)))
        await served.facts.seen(Arrived, arrived + 1)
    return calls


async def test_an_autoscaler_is_told_how_much_work_waits(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    idle = (await served.operate("GET", "scaling")).json()
    assert (idle["decides"], idle["waiting_work_seconds"], idle["busy_ratio"]) == (True, 0, 0)
    engine.answer = engine.when_released
    calls = await asking(served, 3)
    loaded = (await served.operate("GET", "scaling")).json()
    assert loaded["waiting_work_seconds"] > 0
    assert loaded["busy_ratio"] == 1
    (model,) = loaded["models"].values()
    assert (model["instances"], model["running"]) == (1, 1)
    assert model["waiting_work_seconds"] == loaded["waiting_work_seconds"]
    engine.release(3)
    for call in calls:
        assert (await call).status == 200


async def test_what_waits_goes_to_an_instance_that_is_added(kairos, engines):
    first, second = await engines(), await engines()
    served = await kairos(first.url, max_num_seqs=1)
    first.answer = first.when_released
    runs, waits = await asking(served, 2)
    await first.called()

    added = await add(served, second, max_num_seqs=3)
    assert (added.status, added.json()) == (
        201,
        {
            "id": name(second),
            "url": second.url,
            "state": "not_in_use",
            "problem": "not probed yet",
            "running": 0,
            "named": False,
            "phase": "both",
        },
    )
    assert (await waits).status == 200
    assert len(second.calls) == 1
    told = await instances(served)
    assert {each: told[each]["state"] for each in told} == dict.fromkeys(
        [name(first), name(second)], "in_use"
    )
    assert [told[name(each)]["running"] for each in (first, second)] == [1, 0]
    assert [told[name(each)]["named"] for each in (first, second)] == [True, False]
    status = (await served.operate("GET", "status")).json()
    assert status["instances"][name(second)]["max_num_seqs"] == 3
    first.release()
    assert (await runs).status == 200


async def test_one_that_is_removed_ends_its_calls_and_gets_no_more(kairos, engines, looked):
    first, second = await engines(), await engines()
    served = await kairos(first.url, second.url, max_num_seqs=1)
    for engine in (first, second):
        engine.answer = engine.when_released
    calls = await asking(served, 2)
    await first.called()
    await second.called()

    removed = await remove(served, first)
    assert removed.status == 202
    assert removed.json()["state"] == "draining"
    assert removed.json()["running"] == 1
    calls += await asking(served)
    second.release(2)
    await second.called(2)
    assert (await served.operate("GET", "status")).json()["draining"] == {name(first): 1}
    assert (await instances(served))[name(first)]["state"] == "draining"
    await looked()
    assert (await instances(served))[name(first)]["running"] == 1
    again = await remove(served, first)
    assert (again.status, again.json()["running"]) == (202, 1)

    first.release()
    assert [(await call).status for call in calls] == [200] * 3
    await gone(served, first)
    assert (len(first.calls), len(second.calls)) == (1, 2)
    assert (await remove(served, first)).error()["code"] == "instance_not_found"
    assert [each.instance_id for each in served.facts.all(InstanceLeft)] == [name(first)]
    status = (await served.operate("GET", "status")).json()
    assert status["draining"] == status["not_in_use"] == {}
    probes = len(first.probes)
    await second.until(lambda: len(second.probes) > 12)
    assert len(first.probes) == probes


async def test_a_stream_goes_on_while_its_instance_drains(kairos, engines):
    first, second = await engines(), await engines()
    served = await kairos(first.url)
    first.answer = first.stream(CHUNK, CHUNK, DONE)
    first.release()
    [call] = await asking(served, stream=True)
    await first.called()
    assert (await add(served, second)).status == 201
    await served.facts.seen(InstanceJoined, 2)
    assert (await remove(served, first)).status == 202
    assert (await served.chat()).status == 200
    first.release(2)
    assert (await call).body == CHUNK * 2 + DONE
    await gone(served, first)
    assert first.lost == 0


async def test_one_that_is_added_again_while_it_drains_is_kept(kairos, engine, looked):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    [call] = await asking(served)
    await engine.called()
    assert (await remove(served, engine)).status == 202
    assert (await add(served, engine, max_num_seqs=2)).status == 201
    await served.facts.seen(InstanceJoined, 2)
    told = (await instances(served))[name(engine)]
    assert (told["state"], told["running"]) == ("in_use", 1)

    [second] = await asking(served)
    await engine.called(2)
    engine.release(2)
    assert [(await each).status for each in (call, second)] == [200, 200]
    await looked()
    assert (await instances(served))[name(engine)]["state"] == "in_use"


async def test_what_waits_for_the_last_instance_is_to_be_asked_again(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    runs, waits = await asking(served, 2)
    await engine.called()
    assert (await remove(served, engine)).status == 202
    (await waits).is_to_be_retried("no_instance")
    (await served.chat()).is_to_be_retried("no_instance")
    assert (await served.ask("GET", "/health")).status == 503
    engine.release()
    assert (await runs).status == 200
    await gone(served, engine)

    engine.answer = type(engine)().answer
    assert (await add(served, engine)).status == 201
    await served.facts.seen(InstanceJoined, 2)
    assert (await served.chat()).status == 200


async def test_an_instance_that_breaks_while_it_drains_takes_nothing_else_along(kairos, engines):
    first, second = await engines(), await engines()
    served = await kairos(first.url)
    first.answer = first.when_released
    [call] = await asking(served)
    await first.called()
    await add(served, second)
    await served.facts.seen(InstanceJoined, 2)
    await remove(served, first)
    await first.stop()
    assert (await call).status == 200
    await gone(served, first)
    assert (await served.chat()).status == 200


async def test_one_that_does_not_answer_is_removed_at_once_too(served, unused_port):
    url = f"http://127.0.0.1:{unused_port}"
    assert (await served.operate("POST", "instances", json={"url": url})).status == 201
    async with asyncio.timeout(LIMIT_S):
        while "nothing answers" not in (await instances(served))[url[7:]]["problem"]:
            await asyncio.sleep(0.02)
    assert (await served.operate("DELETE", f"instances/{url[7:]}")).json()["problem"] is None
    async with asyncio.timeout(LIMIT_S):
        while url[7:] in await instances(served):
            await asyncio.sleep(0.02)
    assert served.facts.all(InstanceLeft) == []


async def test_an_ipv6_address_names_an_instance_too(served):
    added = await served.operate("POST", "instances", json={"url": "http://[::1]:9/v1"})
    assert added.json()["id"] == "[::1]:9"
    assert (await served.operate("DELETE", "instances/[::1]:9")).status == 202


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is not an engine: Input data was truncated"),
        (b"[]", "the body is not an engine: Expected `object`, got `array`"),
        (b"\xff", "the body is not an engine: JSON is malformed: invalid character (byte 0)"),
        (b'{"url": "\xff"}', "the body is not an engine: 'utf-8' codec can't decode byte 0xff"),
        (b"{}", "the body is not an engine: Object missing required field `url`"),
        ({"url": "http://h", "models": []}, "Object contains unknown field `models`"),
        ({"url": "http://h", "max_num_seqs": "8"}, "Expected `int | null`, got `str`"),
        ({"url": "gpu1"}, "engine 'gpu1' is not a URL like http://127.0.0.1:8101"),
        ({"url": "http://a..b"}, "engine 'http://a..b' is not a URL"),
        ({"url": "http://u:secret@h"}, "engine h: put its key into api_key_env, not into the URL"),
        ({"url": "http://h", "max_num_seqs": 0}, "engine h: max_num_seqs must be at least 1"),
        ({"url": "http://h", "kv_tokens": 10**30}, "engine h: kv_tokens must be under 10"),
        ({"url": "http://h", "api_key_env": "NONE"}, "engine h: the variable NONE is not set"),
        ({"url": "http://h", "api_key_env": "HOME"}, "no engine of the settings names"),
    ],
)
async def test_what_is_no_engine_is_refused_with_the_reason(served, engine, body, problem):
    data = body if isinstance(body, bytes) else json.dumps(body)
    refused = await served.operate("POST", "instances", data=data)
    assert refused.status == 400
    message = refused.error()["message"]
    assert problem in message
    assert "secret" not in message
    assert list(await instances(served)) == [name(engine)]


async def test_one_that_is_there_is_not_added_again(served, engine):
    (await add(served, engine, max_num_seqs=7)).is_refused(409, "instance_exists")
    status = (await served.operate("GET", "status")).json()
    assert status["instances"][name(engine)]["max_num_seqs"] == 256


async def test_there_are_only_so_many_and_those_that_drain_count(kairos, engines, monkeypatch):
    monkeypatch.setattr(fleet, "MAX_ENGINES", 2)
    first, second, third = await engines(), await engines(), await engines()
    served = await kairos(first.url)
    first.answer = first.when_released
    [call] = await asking(served)
    await first.called()
    assert (await add(served, second)).status == 201
    await remove(served, first)
    (await add(served, third)).is_refused(409, "too_many_instances")
    assert (await add(served, first)).status == 201
    await served.facts.seen(InstanceJoined, 3)
    first.release()
    assert (await call).status == 200


async def test_a_body_has_a_limit(served):
    refused = await served.operate("POST", "instances", data=b" " * 20_000)
    assert (refused.status, refused.error()["code"]) == (413, "body_too_large")


async def test_a_web_page_can_change_nothing(served, engine):
    page = {"Origin": "http://127.0.0.1:8001"}
    body = {"url": "http://h:1"}
    for answer in (
        await served.operate("POST", "instances", json=body, headers=page),
        await served.operate("DELETE", f"instances/{name(engine)}", headers=page),
    ):
        assert (answer.status, answer.error()["code"]) == (403, "not_for_pages")
    assert (await instances(served))[name(engine)]["state"] == "in_use"


async def test_a_web_page_whose_name_leads_here_reads_nothing(kairos, engine):
    served = await kairos(engine.url, admin_hosts=("kairos.internal",))
    port = urlsplit(served.service.admin_url).port
    for path in ("status", "instances", "nothing"):
        page = await served.operate("GET", path, headers={"Host": f"evil.example:{port}"})
        assert (page.status, page.error()["code"]) == (421, "unknown_host")
        assert "admin_hosts" in page.error()["message"]
    for host in ("kairos.internal", f"localhost:{port}", f"127.0.0.1:{port}", "10.1.2.3"):
        assert (await served.operate("GET", "status", headers={"Host": host})).status == 200
    body = {"url": "http://h:1"}
    added = await served.operate("POST", "instances", json=body, headers={"Host": "evil.example"})
    assert added.status == 421
    assert (await served.ask("GET", "/health", headers={"Host": "any.example"})).status == 200


async def test_the_operators_port_takes_no_more_headers_than_the_clients(served):
    for url in (served.url, served.service.admin_url):
        for path in ("/health", "/admin/status"):
            wire = await served.connect(url)
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
            await wire.send(head.encode() + b"A: b\r\n" * 30_000 + b"\r\n")
            assert (await wire.head())[0] == 431


async def test_clients_cannot_reach_the_routes_of_operators(served, engine):
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", f"/{name(engine)}")):
        answer = await served.ask(method, f"/admin/instances{path}", json={"url": "http://h:1"})
        assert answer.status == 404


async def test_a_key_that_the_settings_name_is_sent_to_one_that_is_added(
    kairos, engines, monkeypatch
):
    monkeypatch.setenv("ENGINE_KEY", "an engine's")
    first, second = await engines(), await engines()
    served = await kairos(first.url, api_key_env="ENGINE_KEY")
    assert (await add(served, second, api_key_env="ENGINE_KEY")).status == 201
    await served.facts.seen(InstanceJoined, 2)
    await remove(served, first)
    assert (await served.chat()).status == 200
    assert second.calls[0].headers["authorization"] == "Bearer an engine's"


def settings(served, *engine_settings, **given):
    of_service = served.service.reload._in_force
    return Settings(
        **{"port": of_service.port, "admin_port": of_service.admin_port, **given},
        engine=tuple(engine_settings),
    )


def engine_of(engine, **given):
    return EngineSettings(url=engine.url, **given)


async def test_engines_that_settings_name_come_go_and_change(kairos, engines):
    stays, goes, comes, by_hand = [await engines() for _ in range(4)]
    served = await kairos(stays.url, goes.url, max_num_seqs=1)
    await add(served, by_hand)
    await served.facts.seen(InstanceJoined, 3)
    stays.answer = stays.when_released
    goes.answer = goes.when_released
    calls = await asking(served, 2, headers={"X-Kairos-Agent": "a"})
    await stays.called()
    other = settings(served, engine_of(stays, max_num_seqs=5), engine_of(comes, max_num_seqs=2))
    served.service.reload(lambda: other)
    await served.facts.seen(InstanceJoined, 5)

    status = (await served.operate("GET", "status")).json()
    assert {n: i["max_num_seqs"] for n, i in status["instances"].items()} == {
        name(stays): 5,
        name(comes): 2,
        name(by_hand): 256,
    }
    # Nothing that is only changed has left: what runs and waits there is as it was.
    assert [each.instance_id for each in served.facts.all(InstanceLeft)] == [name(goes)]
    goes.release(2)
    stays.release(2)
    assert [(await call).status for call in calls] == [200, 200]
    await gone(served, goes)


async def test_settings_win_for_what_they_name_and_leave_the_rest(kairos, engines):
    named, removed, by_hand = [await engines() for _ in range(3)]
    served = await kairos(named.url, removed.url)
    await add(served, by_hand)
    await served.facts.seen(InstanceJoined, 3)
    await remove(served, removed)
    await gone(served, removed)

    same = settings(served, engine_of(named), engine_of(removed))
    served.service.reload(lambda: same)
    await served.facts.seen(InstanceJoined, 4)
    told = await instances(served)
    assert {each: told[each]["named"] for each in told} == {
        name(named): True,
        name(by_hand): False,
        name(removed): True,
    }

    adopted = settings(served, engine_of(named), engine_of(by_hand))
    served.service.reload(lambda: adopted)
    await gone(served, removed)
    served.service.reload(lambda: settings(served, engine_of(named)))
    await gone(served, by_hand)
    assert list(await instances(served)) == [name(named)]


async def test_settings_that_still_name_one_that_drains_keep_it(served, engine):
    engine.answer = engine.when_released
    [call] = await asking(served)
    await engine.called()
    await remove(served, engine)
    same = settings(served, engine_of(engine))
    served.service.reload(lambda: same)
    await served.facts.seen(InstanceJoined, 2)
    engine.release(2)
    assert (await call).status == 200
    assert (await served.chat()).status == 200


async def test_one_that_is_named_as_before_is_not_asked_anew(kairos, engines, monkeypatch):
    probe_every(monkeypatch)
    first, second = await engines(), await engines()
    served = await kairos(first.url)
    asked = len(first.probes)
    served.service.reload(lambda: settings(served, engine_of(first), engine_of(second)))
    await served.facts.seen(InstanceJoined, 2)
    assert (await served.chat()).status == 200
    assert len(first.probes) == asked


async def test_one_that_was_removed_by_hand_and_from_the_settings_is_not_missed(kairos, engines):
    stays, goes = await engines(), await engines()
    served = await kairos(stays.url, goes.url)
    await remove(served, goes)
    await gone(served, goes)
    served.service.reload(lambda: settings(served, engine_of(stays)))
    assert list(await instances(served)) == [name(stays)]


async def test_limits_on_bodies_change_with_the_settings(served, engine):
    for limit, status in (("max_held_bytes", 429), ("max_body_bytes", 413)):
        less = settings(served, engine_of(engine), **{limit: 10})
        served.service.reload(lambda told=less: told)
        assert (await served.chat()).status == status
    served.service.reload(lambda: settings(served, engine_of(engine)))
    assert (await served.chat()).status == 200
