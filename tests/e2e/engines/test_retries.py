"""Calls that come to nothing by an instance's fault, and go on elsewhere."""

import asyncio
import json

import pytest
from aiohttp import web

from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    InstanceStatus,
    Refuse,
)
from tests.e2e.test_failures import CHUNK, DONE, STREAM
from tests.support.engines.probes import probe_every
from tests.support.loop_clock import moved_clock

ERROR = b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
ANSWER = {"object": "whole"}
ASKED = {"model": "tiny", "messages": []}


@pytest.fixture(autouse=True)
def seldom(monkeypatch):
    """Engines are looked at once, so that only calls meet what is wrong with them."""
    probe_every(monkeypatch)


async def whole(request):
    return web.json_response(ANSWER)


def answers(status, **headers):
    async def answer(request):
        return web.json_response({"error": {"message": "mine"}}, status=status, headers=headers)

    return answer


def fails_when_released(engine):
    async def answer(request):
        await engine.turns.acquire()
        return web.json_response({}, status=500)

    return answer


async def cut(request):
    request.transport.abort()
    await asyncio.sleep(3600)


async def silent(request):
    await asyncio.sleep(3600)


async def garbage(request):
    request.transport.write(b"\x00\x01 is not HTTP\r\n\r\n")
    await asyncio.sleep(3600)


async def no_json(request):
    return web.Response(text="<html>", content_type="application/json")


async def cut_amid(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    response.content_type = "application/json"
    await response.prepare(request)
    await response.write(b'{"half')
    request.transport.close()
    return response


async def error_first(request):
    return web.Response(body=ERROR + DONE, content_type="text/event-stream")


def dispatched(served):
    commands = [c for record in served.facts.records for c in record.commands]
    return [c.instance_id for c in commands if isinstance(c, Dispatch)]


BAD = {
    "500": answers(500),
    "502": answers(502),
    "503": answers(503),
    "504": answers(504),
    "cut": cut,
    "garbage": garbage,
    "no JSON": no_json,
    "cut amid a whole answer": cut_amid,
    "an error before anything else in its stream": error_first,
}


@pytest.mark.parametrize("what", BAD)
async def test_what_one_instance_cannot_do_another_does(kairos, engines, what):
    one, other = await engines(), await engines()
    served = await kairos(one.url, other.url)
    one.answer = other.answer = in_turn(BAD[what], whole)

    answer = await served.chat(headers={"x-request-id": "mine"})

    assert (answer.status, answer.json()) == (200, ANSWER)
    assert [each.headers["x-request-id"] for each in one.calls + other.calls] == ["mine", "mine"]
    assert sorted(dispatched(served)) == sorted([urls(one), urls(other)])
    assert [each.request_id for each in served.facts.all(Bounced)] == ["mine"]
    assert len(served.facts.all(Finished)) == 1
    assert served.facts.all(Failed) == []


def urls(engine):
    return engine.url.removeprefix("http://")


async def in_order(kairos, engines, **given):
    """One before two engines, and these: the first is the one that has the first call."""
    both = await engines(), await engines()
    served = await kairos(*(each.url for each in both), **given)
    by_name = {urls(each): each for each in both}
    return served, *(by_name[name] for name in served.balancer.ledger.instances)


def in_turn(*answers):
    """Whichever instance is asked first does the first, the next the second."""
    turns = iter(answers)

    async def answer(request):
        return await next(turns)(request)

    return answer


@pytest.mark.parametrize(
    ("status", "asked"), [(400, 1), (422, 1), (404, 2), (405, 2), (429, 2), (501, 2)]
)
async def test_what_an_engine_says_is_so_of_a_call_at_once_and_of_itself_once_all_say_so(
    kairos, engines, status, asked
):
    first, second = await engines(), await engines()
    served = await kairos(first.url, second.url)
    first.answer = second.answer = answers(status)

    assert (await served.chat()).status == status
    assert len(first.calls + second.calls) == asked
    assert asked == 2 or not served.balancer.faults.circuits


async def test_where_all_have_failed_the_client_has_the_last_ones_own_words(kairos, engines):
    first, second = await engines(), await engines()
    served = await kairos(first.url, second.url)
    then = answers(503, **{"Retry-After": "7"})
    first.answer = second.answer = in_turn(cut, then)

    answer = await served.chat()

    assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
    assert answer.json() == {"error": {"message": "mine"}}
    refusals = [c for record in served.facts.records for c in record.commands]
    assert [each.reason for each in refusals if isinstance(each, Refuse)] == ["no_other"]


async def test_an_error_in_the_only_instances_stream_reaches_the_client_as_it_is(served, engine):
    engine.answer = error_first

    answer = await served.chat(**STREAM)

    assert (answer.status, answer.body) == (200, ERROR + DONE)
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_no_more_than_three_instances_have_a_call(kairos, engines):
    all_bad = [await engines() for _ in range(4)]
    served = await kairos(*(each.url for each in all_bad))
    for each in all_bad:
        each.answer = answers(500)

    assert (await served.chat()).status == 500
    assert sum(len(each.calls) for each in all_bad) == 3


def goes_on_with(piece):
    """After its first chunk, more often than it would be taken for silent."""

    async def answer(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHUNK)
        while True:
            await asyncio.sleep(0.2)
            await response.write(piece)

    return answer


@pytest.mark.parametrize("piece", [b": ping\n\n", b"x"], ids=["comments", "no end of an event"])
async def test_an_engine_that_brings_no_event_is_silent_whatever_it_sends(kairos, engines, piece):
    served, bad, good = await in_order(kairos, engines, stall_s=1)
    bad.answer = goes_on_with(piece)

    answer = await served.chat(**STREAM)

    assert answer.body.startswith(CHUNK)
    error = json.loads(answer.body.split(b"\n\n")[-3].removeprefix(b"data: "))["error"]
    assert error["code"] == "answer_timeout"
    assert answer.body.endswith(DONE)
    assert b"x" not in answer.body[len(CHUNK) :].partition(b"data:")[0]
    assert good.calls == []
    [failed] = served.facts.all(Failed)
    assert not failed.by_instance


async def test_a_stream_is_not_silent_as_long_as_there_are_events(kairos, engines):
    served, slow, _ = await in_order(kairos, engines, stall_s=60)
    slow.answer = slow.stream(*[CHUNK] * 6, DONE)
    asking = asyncio.create_task(served.chat(**STREAM))
    await slow.called()
    with moved_clock() as clock:
        for _ in range(7):
            await clock.passes(40)
            slow.release()

    answer = await asking

    assert answer.body == CHUNK * 6 + DONE
    assert len(served.facts.all(Finished)) == 1


async def test_an_event_that_is_never_whole_is_begun_anew_elsewhere(kairos, engines):
    served, bad, good = await in_order(kairos, engines)
    bad.answer = bad.stream(CHUNK[:-1], b"", then=lambda transport: transport.abort())
    bad.release(3)
    good.answer = good.stream(CHUNK, DONE)
    good.release(2)

    answer = await served.chat(**STREAM)

    assert answer.body == CHUNK + DONE
    assert len(good.calls) == 1


@pytest.mark.parametrize("how", ["cut", "silence"])
async def test_what_the_client_has_the_beginning_of_is_not_begun_anew(kairos, engines, how):
    served, bad, good = await in_order(kairos, engines, stall_s=60 if how == "cut" else 1)
    then = (lambda transport: transport.abort()) if how == "cut" else None
    parts = (CHUNK,) if how == "cut" else (CHUNK, CHUNK)  # the second never comes
    bad.answer = bad.stream(*parts, then=then)
    bad.release(2 if how == "cut" else 1)

    answer = await served.chat(**STREAM)

    begun, said, end = answer.body.partition(b"\n\n")
    assert begun + said == CHUNK
    error = json.loads(end.removeprefix(b"data: ").partition(b"\n\n")[0])["error"]
    assert error["code"] == ("upstream_failed" if how == "cut" else "answer_timeout")
    assert end.endswith(DONE)
    assert good.calls == []
    [failed] = served.facts.all(Failed)
    assert failed.by_instance == (how == "cut")


async def test_a_client_that_leaves_while_its_call_waits_again_has_left(kairos, engines):
    served, bad, good = await in_order(kairos, engines, max_num_seqs=1)
    bad.answer, good.answer = fails_when_released(bad), good.when_released
    wire = await served.post_raw("/v1/chat/completions", ASKED, "X-Request-Id: leaves")
    await bad.called()
    other = asyncio.create_task(served.chat(headers={"x-request-id": "stays"}))
    await good.called()
    bad.release()
    await served.facts.seen(Bounced)
    assert served.balancer.waiting == 1
    wire.leave()
    await served.facts.seen(Cancelled)
    good.release()

    assert (await other).status == 200
    assert [each.request_id for each in served.facts.all(Finished)] == ["stays"]


async def test_a_call_is_not_tried_again_beyond_its_deadline(kairos, engines):
    served, bad, good = await in_order(kairos, engines, stall_s=60)
    bad.answer, good.answer = silent, silent
    deadline = served.service.brain.now() + 500_000

    answer = await served.chat(headers={"X-Kairos-Deadline": str(deadline)})

    assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert len(bad.calls + good.calls) == 1


async def test_an_instance_that_only_fails_gets_few_calls_until_it_is_well_again(kairos, engines):
    served, bad, good = await in_order(kairos, engines)
    bad.answer, good.answer = answers(500), whole
    for _ in range(30):
        assert (await served.chat()).status == 200
    assert len(bad.calls) == 1  # nothing was known of it

    bad.answer = whole
    while served.balancer.faults.circuits:
        assert (await served.chat()).status == 200
    assert (await served.ask("GET", "/health")).status == 200


async def test_a_call_that_came_back_goes_before_those_that_wait(kairos, engines):
    served, bad, good = await in_order(kairos, engines, max_num_seqs=1)
    bad.answer = fails_when_released(bad)
    good.answer = good.when_released
    running = []
    for number in range(5):
        running.append(asyncio.create_task(served.chat(headers={"x-request-id": f"r{number}"})))
        await served.facts.seen(Arrived, number + 1)
    await bad.called()
    await good.called()

    bad.release()
    await served.facts.seen(Bounced)
    await served.facts.seen(InstanceStatus)  # until then it has no turn
    good.release(10)
    bad.release(10)

    assert [(await each).status for each in running] == [200] * 5
    on_good = [each.headers["x-request-id"] for each in good.calls]
    assert on_good[:2] == ["r1", "r0"]
