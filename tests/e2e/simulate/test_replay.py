"""A replay against engines that a test holds by hand, and against a whole Kairos."""

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from kairos.core import (
    IDENTIFIER_PATTERN,
    Arrived,
    Finished,
    InvalidRequest,
    KairosError,
    Request,
    SetupError,
    WorkflowEnded,
)
from kairos.proxy import ANSWER_BYTES
from kairos.simulate import FileCall, Replay, draw_submissions, load_workflows, replay_client
from kairos.simulate.replay import Wording
from kairos.simulate.replay_client import CallFailed, ReplayClient, headers_of, server_url
from kairos.simulate.workload.workflows import Submission, workflow
from tests.e2e.client import LIMIT_S

RECORDED = Path(__file__).parents[3] / "traces" / "demo-smollm2.jsonl.gz"
CHAT = "/v1/chat/completions"


def call(index, agent="writer", **given):
    fields = {"workflow_id": "w", "app": "rg", "upstream": None, "prompt_tokens": 30}
    return FileCall(agent=agent, call_index=index, **fields | {"completion_tokens": 5} | given)


def asked(agent):
    """A call by this agent."""
    named = {"id": "r", "workflow_id": "w", "app": "rg", "agent": agent}
    return Request(
        **named, workflow_started_at=0, arrived_at=0, prompt_tokens=1, completion_tokens=1
    )


def at_once(*workflows):
    """Each workflow a list of calls."""
    return [Submission(at_us=0, workflow=workflow(calls)) for calls in workflows]


def answer(tokens=5, prompt_tokens=30):
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    return web.json_response({"choices": [], "usage": usage})


async def never(*_):
    await asyncio.Event().wait()


def refusal(status, headers=None):
    body = {"error": {"message": "not so", "type": "t", "param": None, "code": "c"}}
    return web.json_response(body, status=status, headers=headers)


class Scripted:
    """Answers what a replay asks to know a server, with a token for each word; its workflows' calls
    by `reply`, which gets their agent and attempt; that they ended, with the status `end`."""

    def __init__(self, engine, reply=None, end=200):
        self.engine, self.reply, self.end = engine, reply, end
        engine.answer = self

    async def __call__(self, request):
        if request.path.endswith("/end"):
            return web.json_response({}, status=self.end)
        agent = request.headers.get("X-Kairos-Agent")
        if agent is None or self.reply is None:
            body = await request.json()
            return answer(prompt_tokens=len(body["messages"][0]["content"].split()))
        return await self.reply(agent, int(request.headers["X-Kairos-Attempt"]))

    @property
    def calls(self):
        """Those of workflows, in order of arrival."""
        return [call for call in self.engine.calls if "x-kairos-agent" in call.headers]

    @property
    def ends(self):
        return [call.path for call in self.engine.calls if call.path.endswith("/end")]

    def agents(self):
        return [call.headers["x-kairos-agent"] for call in self.calls]


async def test_workflows_go_through_kairos_as_they_were_recorded(kairos, standin):
    served = await kairos(standin.url)
    recorded = load_workflows(RECORDED)[:12]
    asked = draw_submissions(recorded, range(0, 12_000, 1000), 1)
    replayed = await Replay(served.url, asked).run()

    calls = [call for each in recorded for call in each.calls]
    assert (replayed.finished, replayed.failed, replayed.unfinished) == (12, 0, 0)
    assert replayed.metrics["workflows"] == 12
    assert replayed.metrics["calls"] == len(replayed.rows) == len(calls)
    assert replayed.metrics["queued_share"] is None
    assert 0 < replayed.metrics["ttft_s"]["p50"] <= replayed.metrics["e2e_s"]["p50"]
    for deviation in (replayed.prompt_deviation, replayed.completion_deviation):
        assert (deviation.calls, deviation.median, deviation.worst) == (len(calls), 0, 0)
    assert replayed.exact_lengths

    requests = {f.request.id: f.request for f in served.facts.all(Arrived) if f.request.app}
    assert requests.keys() == {row.request.id for row in replayed.rows}
    seen = Counter((each.app, each.agent, each.upstream) for each in requests.values())
    assert seen == Counter((each.app, each.agent, each.upstream) for each in calls)
    first_at = min(row.request.workflow_started_at for row in replayed.rows)
    for row in replayed.rows:
        number = int(row.request.workflow_id.rpartition("-")[2])
        assert row.request.workflow_started_at == first_at + asked[number - 1].at_us
        request = requests[row.request.id]
        assert request.workflow_started_at == row.request.workflow_started_at
        assert request.parent_ids == row.request.parent_ids
    counted = Counter(
        (fact.prompt_tokens, fact.completion_tokens)
        for fact in served.facts.all(Finished)
        if fact.request_id in requests
    )
    assert counted == Counter((each.prompt_tokens, each.completion_tokens) for each in calls)
    ended = {fact.workflow_id for fact in served.facts.all(WorkflowEnded)}
    assert ended >= {f"replay-{replayed.run_id}-{number}" for number in range(1, 13)}


async def test_a_call_goes_when_all_that_it_waits_for_have_ended_plus_its_gap(engine):
    async def reply(agent, _):
        if agent == "left":  # is still under way when its sibling has ended
            await engine.until(lambda: "right" in server.agents())
            await asyncio.sleep(0)
        return answer()

    server = Scripted(engine, reply)
    calls = [
        call(0, "first"), call(1, "left", parallel_group="g"), call(2, "right", parallel_group="g"),
        call(3, "join", gap_ms=50),
    ]  # fmt: skip
    replayed = await Replay(engine.url, at_once(calls), stream=False).run()

    assert server.agents()[0] == "first"
    assert set(server.agents()[1:3]) == {"left", "right"}
    assert server.agents()[3:] == ["join"]
    rows = {row.request.agent: row for row in replayed.rows}
    waited_us = rows["join"].request.arrived_at - max(rows["left"].ended_at, rows["right"].ended_at)
    assert waited_us >= 50_000
    ids = {row.request.agent: row.request.id for row in replayed.rows}
    parents = {
        each.headers["x-kairos-agent"]: each.headers.get("x-kairos-parent-id")
        for each in server.calls
    }
    assert parents == {
        "first": None, "left": ids["first"], "right": ids["first"],
        "join": f"{ids['left']},{ids['right']}",
    }  # fmt: skip


async def test_no_workflow_waits_for_the_answers_of_others(engine):
    server = Scripted(engine, never)
    planned = [
        Submission(at_us=number * 2000, workflow=workflow([call(0, workflow_id=f"w{number}")]))
        for number in range(100)
    ]
    run = Replay(engine.url, planned)
    running = asyncio.create_task(run.run())
    await engine.until(lambda: len(server.calls) == 100)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    replayed = run.result()
    assert (replayed.begun, replayed.finished, replayed.unfinished) == (100, 0, 100)
    assert replayed.metrics["workflows"] == 0
    await engine.until(lambda: engine.lost == 100)


async def test_after_the_time_limit_what_finished_is_told(engine):
    async def reply(agent, _):
        if agent == "slow":
            await asyncio.Event().wait()
        return answer()

    Scripted(engine, reply)
    calls = ([call(0, "quick", workflow_id="a"), call(1, "slow", workflow_id="a")],
             [call(0, "quick", workflow_id="b")])  # fmt: skip
    replayed = await Replay(engine.url, at_once(*calls), time_limit_s=0.5).run()
    assert (replayed.finished, replayed.failed, replayed.unfinished) == (1, 0, 1)
    assert (replayed.metrics["workflows"], replayed.metrics["calls"]) == (1, 1)
    assert len(replayed.rows) == 2


async def test_a_workflow_has_not_begun_before_it_is_due(engine):
    Scripted(engine)
    later = Submission(at_us=60_000_000, workflow=workflow([call(0, workflow_id="later")]))
    replayed = await Replay(engine.url, [*at_once([call(0)]), later], time_limit_s=0.3).run()
    assert (replayed.begun, replayed.finished, replayed.unfinished) == (1, 1, 1)


@pytest.mark.parametrize("status", [400, 422])
async def test_fields_that_a_server_refuses_are_left_out_from_then_on(engine, status):
    async def strict(request):
        known = {"model", "messages", "max_tokens", "stream", "stream_options"}
        if request.path == CHAT and not (await request.json()).keys() <= known:
            return refusal(status)
        return answer(tokens=3)

    engine.answer = strict
    replayed = await Replay(engine.url, at_once([call(0), call(1)])).run()

    bodies = [json.loads(each.body) for each in engine.calls if each.path == CHAT]
    assert ["ignore_eos" in body for body in bodies] == [True] + [False] * (len(bodies) - 1)
    assert ["min_tokens" in body for body in bodies] == [True] + [False] * (len(bodies) - 1)
    assert replayed.finished == 1
    assert not replayed.exact_lengths
    assert (replayed.completion_deviation.median, replayed.completion_deviation.worst) == (-2, -2)


async def test_lengths_that_are_not_told_are_left_to_the_engine(engine):
    server = Scripted(engine)
    asked = at_once([call(0, completion_tokens=7), call(1, completion_tokens=1)])
    await Replay(engine.url, asked, tell_lengths=False).run()

    bodies = [json.loads(each.body) for each in server.calls]
    assert not any("max_tokens" in body for body in bodies)
    assert [body["min_tokens"] + 1 for body in bodies] == [7, 1]
    for body in bodies:
        (last,) = body["stop_token_ids"]
        assert body["logit_bias"] == {str(last): 100}


async def test_a_server_that_refuses_every_call_is_told_of_at_once(engine):
    async def refuse(_):
        return refusal(400)

    engine.answer = refuse
    with pytest.raises(CallFailed, match="answered 400: not so"):
        await Replay(engine.url, at_once([call(0)])).run()
    assert not any("x-kairos-agent" in each.headers for each in engine.calls)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_what_is_refused_for_now_is_tried_twice_again_as_the_same_call(
    engine, status, monkeypatch
):
    async def reply(agent, attempt):
        return refusal(status, {"Retry-After": "7"}) if attempt < 3 else answer()

    async def wait(seconds, sleep=asyncio.sleep):
        waits.append(seconds)
        await sleep(0)

    waits = []
    monkeypatch.setattr(asyncio, "sleep", wait)

    server = Scripted(engine, reply)
    replayed = await Replay(engine.url, at_once([call(0)])).run()
    assert replayed.finished == 1
    assert replayed.retries == {str(status): 2}
    assert [each for each in waits if each >= 1] == [7 if status in (429, 503) else 1] * 2
    assert len({each.headers["x-request-id"] for each in server.calls}) == 1
    assert [each.headers["x-kairos-attempt"] for each in server.calls] == ["1", "2", "3"]


async def test_a_workflow_of_which_a_call_fails_for_good_makes_no_further_calls(engine):
    async def reply(agent, _):
        match agent:
            case "busy":
                return refusal(429, {"Retry-After": "0"})
            case "long":
                return refusal(413)
        return answer()

    server = Scripted(engine, reply)
    workflows = [
        [call(0, name, workflow_id=name), call(1, "after", workflow_id=name)]
        for name in ("busy", "long", "well")
    ]
    replayed = await Replay(engine.url, at_once(*workflows)).run()
    assert (replayed.finished, replayed.failed) == (1, 2)
    assert replayed.failures == {"429": 1, "413": 1}
    assert replayed.retries == {"429": 2}
    assert "not so" in replayed.examples["413"]
    assert Counter(server.agents()) == {"busy": 3, "long": 1, "well": 1, "after": 1}
    assert (replayed.metrics["workflows"], replayed.metrics["calls"]) == (1, 2)
    assert Counter(row.outcome for row in replayed.rows) == {"failed": 2, "finished": 2}
    assert len(server.ends) == 3


async def test_a_branch_goes_no_further_when_another_has_failed(engine):
    async def reply(agent, _):
        if agent == "left":
            return refusal(413)
        if agent == "right":
            await failed.wait()
        return answer()

    failed = asyncio.Event()
    server = Scripted(engine, reply)
    calls = [
        call(0, "left", parallel_group="l", start_ms=0, end_ms=90),
        call(1, "right", parallel_group="r", start_ms=0, end_ms=50),
        call(2, "further", parallel_group="r", start_ms=50, end_ms=90),
    ]
    run = Replay(engine.url, at_once(calls))
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        group.create_task(run.run())
        await engine.until(lambda: len(server.calls) == 2)
        while run.progress().calls_in_flight > 1:
            await asyncio.sleep(0)
        failed.set()
    replayed = run.result()
    assert sorted(server.agents()) == ["left", "right"]
    assert Counter(row.outcome for row in replayed.rows) == {"failed": 1, "finished": 1}


def event_stream(body):
    return web.Response(body=body, headers={"Content-Type": "text/event-stream"})


LOST = {"error": {"message": "lost"}}
FAILURES = {
    "error in the answer": lambda: web.json_response(LOST),
    "too long": lambda: web.Response(
        body=b" " * (ANSWER_BYTES + 1), content_type="application/json"
    ),
    "broken off": lambda: web.Response(body=b"{}", headers={"Content-Encoding": "gzip"}),
    "no answer": None,
    "error in the stream": lambda: event_stream(
        f"data: {json.dumps(LOST)}\n\ndata: [DONE]\n\n".encode()
    ),
    "broken off as a stream": lambda: event_stream(b'data: {"choices": []}\n\n'),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_what_is_no_whole_answer_is_a_failure(engine, kind, monkeypatch):
    monkeypatch.setattr(replay_client, "_SILENCE_S", 0.2 if kind == "no answer" else 60)

    async def reply(*_):
        return FAILURES[kind]()

    Scripted(engine, reply if FAILURES[kind] else never)
    replayed = await Replay(engine.url, at_once([call(0)])).run()
    kind = kind.removesuffix(" as a stream")
    assert (replayed.failures, replayed.failed) == ({kind: 1}, 1)
    assert "error" not in kind or "lost" in replayed.examples[kind]


async def test_a_server_that_breaks_while_it_is_measured_is_told_of_before_anything_is_sent(engine):
    async def reply(request):
        measuring = len((await request.json())["messages"][0]["content"]) > 10
        return refusal(503, {"Retry-After": "0"}) if measuring else answer()

    engine.answer = reply
    with pytest.raises(CallFailed, match="answered 503"):
        await Replay(engine.url, at_once([call(0)])).run()
    assert not any("x-kairos-agent" in each.headers for each in engine.calls)


async def test_where_the_context_is_too_short_to_measure_words_a_word_is_taken_for_a_token(engine):
    async def reply(request):
        words = len((await request.json())["messages"][0]["content"].split())
        return refusal(413) if words > 40 else answer(prompt_tokens=words + 2)

    engine.answer = reply
    replayed = await Replay(engine.url, at_once([call(0)])).run()
    assert (replayed.prompt_deviation.calls, replayed.prompt_deviation.worst) == (1, 2)


async def test_with_a_model_named_the_server_need_not_list_any(engine):
    engine.models = []
    replayed = await Replay(engine.url, at_once([call(0)]), model="mine").run()
    assert (replayed.finished, replayed.model) == (1, "mine")
    assert engine.probes == []
    assert {json.loads(each.body)["model"] for each in engine.calls if each.path == CHAT} == {
        "mine"
    }


async def test_what_there_is_so_far_is_told_alike_however_often(engine):
    async def reply(agent, _):
        return refusal(413) if agent == "long" else answer()

    Scripted(engine, reply)
    run = Replay(engine.url, at_once([call(0, "long")], [call(0, workflow_id="v")]))
    await run.run()
    assert len(run.result().rows) == 2
    assert run.result() == run.result()


async def test_a_call_names_the_latest_of_many_that_it_waited_for(engine):
    server = Scripted(engine)
    calls = [call(index, parallel_group="g") for index in range(40)]
    await Replay(engine.url, at_once([*calls, call(40, "join")])).run()
    (join,) = [each for each in server.calls if each.headers["x-kairos-agent"] == "join"]
    parents = join.headers["x-kairos-parent-id"].split(",")
    assert [each.rpartition(".")[2] for each in parents] == [str(n) for n in range(8, 40)]


async def test_workflows_begin_when_they_are_due_and_it_is_told_where_they_began_late(
    engine, monkeypatch
):
    Scripted(engine)
    planned = [
        Submission(at_us=at_us, workflow=workflow([call(0, workflow_id=f"w{at_us}"), call(1)]))
        for at_us in (0, 100_000)
    ]
    replayed = await Replay(engine.url, planned).run()
    for row in replayed.rows:
        assert row.request.arrived_at >= row.request.workflow_started_at

    text = Wording.text

    def slowly(*given):
        time.sleep(0.02)
        return text(*given)

    monkeypatch.setattr(Wording, "text", slowly)
    replayed = await Replay(engine.url, planned).run()
    assert replayed.late_starts == 2  # of workflows, whatever their later calls
    assert replayed.worst_start_s >= 0.02
    assert not replayed.kept_up


async def test_a_prompt_may_be_as_long_as_a_large_body(engine):
    server = Scripted(engine)
    await Replay(engine.url, at_once([call(0, prompt_tokens=300_000)])).run()
    assert len(server.calls[0].body) > 1_200_000


async def test_the_first_token_is_that_of_the_first_bytes(engine):
    engine.answer = engine.stream(b"data: {}\n\n", b"data: {}\n\n", b"data: [DONE]\n\n")
    instants = iter(range(9))
    async with ReplayClient(engine.url, None, lambda: next(instants)) as client:
        asking = asyncio.create_task(client.chat(b"{}", {}))
        for _ in range(3):
            engine.release()
            await asyncio.sleep(0.01)  # so that the parts come one by one
        assert (await asking).first_token_at == 0
    assert next(instants) == 1


@pytest.mark.parametrize(
    ("status", "told"), [(200, 3), (202, 3), (429, 3), (503, 3), (404, 1), (405, 1)]
)
async def test_a_server_that_knows_no_workflows_is_told_of_one_end_alone(engine, status, told):
    server = Scripted(engine, end=status)
    apart = [
        Submission(at_us=number * 100_000, workflow=workflow([call(0, workflow_id=f"w{number}")]))
        for number in range(3)
    ]
    replayed = await Replay(engine.url, apart).run()
    assert replayed.finished == 3
    assert len(server.ends) == told


async def test_a_workflow_that_kairos_never_saw_does_not_make_it_another_server(engine):
    async def reply(request):
        if request.path.endswith("/end"):
            error = {"message": "", "type": "", "param": None, "code": "workflow_not_found"}
            return web.json_response({"error": error}, status=404)
        return answer()

    engine.answer = reply
    calls = ([call(0, workflow_id="a")], [call(0, workflow_id="b"), call(1, workflow_id="b")])
    await Replay(engine.url, at_once(*calls)).run()
    assert sum(each.path.endswith("/end") for each in engine.calls) == 2


async def test_names_that_no_header_may_have_are_made_ones_that_it_may(kairos, standin):
    served = await kairos(standin.url)
    named = call(0, "-Säge über\r\nX: 1", app="a" * 200, upstream="a b")
    replayed = await Replay(served.url, at_once([named])).run()
    assert replayed.finished == 1
    (request,) = [fact.request for fact in served.facts.all(Arrived) if fact.request.app]
    assert (request.agent, request.upstream) == ("_S_ge__ber__X:_1-0d2a03a8", "a_b-806c5cd3")
    assert request.app.startswith("a" * 119 + "-")
    assert list(replayed.metrics["apps"]) == ["a" * 200]


def test_names_that_differ_still_do_in_headers():
    names = ["写手", "评审", "a" * 200, "a" * 199, "a b", "a_b"]
    written = {headers_of(asked(name))["X-Kairos-Agent"] for name in names}
    assert len(written) == 6
    assert all(re.match(IDENTIFIER_PATTERN, each) for each in written)
    assert "a_b" in written


async def test_where_no_model_is_served_nothing_is_sent(engine):
    engine.models = []
    with pytest.raises(SetupError, match="offers no model"):
        await Replay(engine.url, at_once([call(0)])).run()
    assert engine.calls == []


async def test_the_key_goes_into_a_header_and_nowhere_else(engine, caplog):
    Scripted(engine)
    replayed = await Replay(engine.url, at_once([call(0)]), api_key="secret").run()
    assert {each.headers["authorization"] for each in engine.calls} == {"Bearer secret"}
    assert "secret" not in json.dumps(replayed.figures()) + caplog.text

    async def refuse(_):
        return refusal(401)

    engine.probe = refuse
    with pytest.raises(InvalidRequest, match="answered 401") as refused:
        await Replay(engine.url, at_once([call(0)]), api_key="secret").run()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("model", [None, "tiny"])
async def test_an_answer_that_is_no_http_does_not_show_the_key(model):
    async def answer_badly(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer_badly, "127.0.0.1")
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    async with server:
        with pytest.raises(KairosError, match="Content-Length") as failed:
            await Replay(url, at_once([call(0)]), model=model, api_key="secret").run()
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("key", ["secret\r", "sec\nret", "secret\u2026"])
async def test_a_key_that_no_header_may_hold_is_refused_without_showing_it(key):
    with pytest.raises(SetupError, match="the API key") as refused:
        Replay("http://127.0.0.1", [], api_key=key)
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@127.0.0.1", "127.0.0.1:8000", "ftp://h", "http://", "http://:80",
        "http://h:99999", "http://h:0", "http://h:x", "http://[::1", "http://h?a", "http://h#a",
        "http://..", "http://a b", "",
    ],
)  # fmt: skip
async def test_a_url_that_cannot_be_is_refused_without_showing_credentials(url):
    with pytest.raises(SetupError) as refused:
        Replay(url, [])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://h:80", "http://h:80/", "http://h:80/v1", "http://h:80/v1/"]
)
def test_the_url_of_a_server_may_end_as_clients_write_it(url):
    assert server_url(url) == "http://h:80"
    assert server_url("https://[::1]:1/a/v1") == "https://[::1]:1/a"
