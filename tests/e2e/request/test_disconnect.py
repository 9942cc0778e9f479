"""A client that leaves takes its call with it, wherever the call is, and nothing else."""

import asyncio
import time
import weakref

import pytest
from aiohttp import web
from msgspec.structs import replace

from kairos.core import Arrived, Cancelled, Dispatch, Failed, Finished, FirstToken, Refuse
from kairos.proxy import CallsInFlight
from kairos.request import bodies
from tests.support.waiting import Told, until

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": [], "stream": True}
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def uploads(monkeypatch):
    """Bodies that are not here yet, as long as anybody holds them."""
    known = weakref.WeakSet()

    class Known(bodies.Upload):
        def __init__(self, *given, **options):
            known.add(self)
            super().__init__(*given, **options)

    monkeypatch.setattr(bodies, "Upload", Known)
    return known


async def test_a_client_that_leaves_the_queue_is_not_served(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    asking = asyncio.create_task(served.chat())
    await engine.called()
    wire = await served.post_raw(CHAT, ASKED, "X-Request-Id: left")
    await served.facts.seen(Arrived, 2)
    assert served.balancer.waiting == 1
    wire.leave()

    assert await served.facts.seen(Cancelled) == Cancelled("left")
    assert served.balancer.waiting == 0
    engine.release()
    assert (await asking).status == 200
    assert len(engine.calls) == 1


async def test_a_client_that_leaves_is_noticed_however_large_its_body_was(served, engine):
    """Reading pauses while a large body is taken, and must go on afterwards."""
    engine.answer = engine.when_released
    wire = await served.connect()
    long = {"role": "user", "content": "word " * 400_000}
    await wire.post(CHAT, ASKED | {"messages": [long]}, "X-Request-Id: left")
    await engine.called()
    wire.leave()

    assert await served.facts.seen(Cancelled) == Cancelled("left")
    await engine.until(lambda: engine.lost == 1)


async def test_a_call_whose_client_leaves_at_the_end_of_its_stream_has_finished(served, engine):
    """Though the engine has yet to close its side."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    engine.answer = engine.stream(CHUNK, usage, DONE, b"")
    engine.release(3)
    wire = await served.post_raw(CHAT, ASKED | {"stream_options": {"include_usage": True}})
    chunks = wire.chunks()
    await wire.head()
    said = b""
    while not said.endswith(DONE):
        said += await anext(chunks)
    wire.leave()

    finished = await served.facts.seen(Finished)
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 2)


async def test_a_call_that_the_client_leaves_at_the_engines_error_has_failed(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    error = b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n'
    engine.answer = engine.stream(CHUNK, error, DONE)
    wire = await served.post_raw(CHAT, ASKED, "X-Request-Id: failed")
    chunks = wire.chunks()
    engine.release()
    await wire.head()
    assert await anext(chunks) == CHUNK
    engine.release()
    assert await anext(chunks) == error
    wire.leave()

    failed = Failed("failed", "engine reported an error in its stream", by_instance=True)
    assert replace(await served.facts.seen(Failed), body=None) == failed
    assert served.facts.all(Cancelled) == []
    await engine.until(lambda: engine.lost == 1)


@pytest.mark.parametrize("asks_usage", [True, False])
async def test_a_client_that_leaves_amid_a_stream_is_gone_from_the_engine_too(
    kairos, engine, asks_usage
):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.stream(CHUNK, CHUNK, DONE)
    wire = await served.connect()
    asked = ASKED | ({"stream_options": {"include_usage": True}} if asks_usage else {})
    await wire.post(CHAT, asked, "X-Request-Id: left")
    engine.release()
    await wire.head()
    assert await anext(wire.chunks()) == CHUNK
    wire.leave()

    assert await served.facts.seen(Cancelled) == Cancelled("left")
    assert len(served.balancer.ledger) == 0
    await engine.until(lambda: engine.lost == 1)


async def test_a_client_that_leaves_amid_a_whole_answer_is_gone_from_the_engine_too(served, engine):
    began = asyncio.Event()

    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"x" * 50)
        began.set()
        await engine.turns.acquire()

    engine.answer = half
    wire = await served.post_raw(CHAT, ASKED | {"stream": False}, "X-Request-Id: left")
    await asyncio.wait_for(began.wait(), 60)
    wire.leave()

    assert await served.facts.seen(Cancelled) == Cancelled("left")
    await engine.until(lambda: engine.lost == 1)


async def test_the_place_of_a_client_that_left_goes_to_the_next(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    wire = await served.post_raw(CHAT, ASKED)
    await engine.called()
    asking = asyncio.create_task(served.chat())
    await served.facts.seen(Arrived, 2)
    assert len(engine.calls) == 1
    wire.leave()
    await engine.called(2)
    await engine.until(lambda: engine.lost == 1)
    engine.release()

    assert (await asking).status == 200


async def test_a_call_is_told_its_turn_once_and_gives_up_when_it_must():
    calls, call = CallsInFlight(), Told()
    calls.expect("a", call)
    calls.dispatch(Dispatch("a", "somewhere"))
    calls.dispatch(Dispatch("a", "elsewhere"))
    calls.refuse(Refuse("a", None))
    assert call.said == ["somewhere"]
    assert (calls.running("somewhere"), calls.running("elsewhere")) == (1, 0)
    calls.refuse(Refuse("a", None, "cancelled"))
    assert call.said == ["somewhere", ("workflow_cancelled", True)]
    calls.forget("a")

    calls.expect("b", refused := Told())
    calls.refuse(Refuse("b", None))
    calls.refuse(Refuse("b", None, "cancelled"))
    calls.dispatch(Dispatch("b", "somewhere"))
    assert refused.said == [("no_instance", False)]
    assert calls.running("somewhere") == 0


async def test_many_that_leave_at_once_leave_nothing_behind(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=8)
    engine.answer = engine.stream(CHUNK, CHUNK, DONE)
    wires = [await served.connect() for _ in range(40)]
    for wire in wires:
        await wire.post(CHAT, ASKED)
    await engine.called(8)
    engine.release(4)
    await served.facts.seen(FirstToken)
    await served.facts.seen(Arrived, 40)
    for wire in wires:
        wire.leave()

    await served.settled()
    assert len(served.facts.all(Cancelled)) == 40
    await engine.until(lambda: engine.lost == len(engine.calls))
    engine.turns = asyncio.Semaphore(3)
    assert (await served.chat(stream=True)).body == CHUNK + CHUNK + DONE


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 100\r\n\r\n",
        b'Content-Length: 100\r\n\r\n{"messages":',
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mes\r\n',
    ],
    ids=["nothing of the body", "half of the body", "a chunk"],
)
async def test_a_client_that_leaves_while_it_uploads_leaves_nothing_behind(
    served, engine, sent, uploads
):
    wire = await served.connect()
    await wire.send(f"POST {CHAT} HTTP/1.1\r\nHost: kairos\r\n".encode() + sent)
    await until(lambda: len(uploads) == 1)
    wire.leave()

    await until(lambda: len(uploads) == 0)
    assert served.facts.all(Arrived) == []
    assert engine.calls == []


@pytest.mark.parametrize("sent", [b"", b'{"messages":'])
async def test_a_body_that_never_ends_is_given_up(kairos, engine, monkeypatch, sent):
    monkeypatch.setattr(bodies, "SILENCE_S", 0.05)
    served = await kairos(engine.url)
    wire = await served.connect()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: kairos\r\nContent-Length: 100\r\n\r\n"
    await wire.send(head.encode() + sent)

    answer = await wire.answer()
    assert answer.status == 408
    assert "nothing arrived of the request body for 0.05 s" in answer.error()["message"]


async def test_a_client_that_closes_its_half_of_the_connection_counts_as_gone(served, engine):
    engine.answer = engine.when_released
    wire = await served.post_raw(CHAT, ASKED)
    await engine.called()
    wire.half_close()

    await served.facts.seen(Cancelled)
    await engine.until(lambda: engine.lost == 1)
    assert await asyncio.wait_for(wire.reader.read(), 60) == b""


async def test_requests_sent_ahead_on_one_connection_are_answered_in_order(served, engine):
    engine.answer = engine.when_released
    wire = await served.connect()
    for number in range(3):
        await wire.post(CHAT, ASKED | {"stream": False}, f"X-Request-Id: {number}")
    engine.release(3)
    answers = [await wire.answer() for _ in range(3)]

    assert [answer.headers["x-request-id"] for answer in answers] == ["0", "1", "2"]
    assert [answer.json()["number"] for answer in answers] == [1, 2, 3]


async def test_a_client_that_sends_requests_ahead_and_leaves_holds_nothing_up(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    wire = await served.connect()
    for _ in range(3):
        await wire.post(CHAT, ASKED)
    await engine.called()
    wire.leave()
    engine.release(4)

    assert (await served.chat()).status == 200
    await served.settled()


async def test_a_client_that_reads_nothing_holds_the_engine_back_until_it_leaves(served, engine):
    part, sent = CHUNK * 2000, 0
    progress = asyncio.Event()

    async def pour(request):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(part)
            sent += len(part)
            progress.set()

    engine.answer = pour
    wire = await served.post_raw(CHAT, ASKED)

    async def pours():
        progress.clear()
        try:
            await asyncio.wait_for(progress.wait(), 0.5)
        except TimeoutError:
            return False
        return True

    while await pours():
        assert sent < 64 << 20
    wire.leave()
    await served.facts.seen(Cancelled)
    await engine.until(lambda: engine.lost == 1)


async def test_the_end_of_an_answer_is_not_taken_for_the_client_leaving(served):
    wire = await served.connect()
    for number in range(1, 21):
        await wire.post(CHAT, ASKED | {"stream": False}, "Connection: keep-alive")
        assert (await wire.answer()).status == 200
        await served.facts.seen(Finished, number)

    assert served.facts.all(Cancelled) == []


def deadline_in(seconds):
    return {"X-Kairos-Deadline": str(int((time.time() + seconds) * 1e6))}


async def test_a_call_is_given_up_at_its_deadline(served, engine):
    engine.answer = engine.when_released

    answer = await served.chat(headers=deadline_in(0.2))

    assert (answer.status, answer.error()["code"]) == (504, "deadline_exceeded")
    await engine.until(lambda: engine.lost == 1)
    assert len(served.facts.all(Cancelled)) == 1
    await served.settled()


async def test_a_stream_that_runs_at_its_deadline_ends_with_an_error(served, engine):
    engine.answer = engine.stream(b'data: {"choices": []}\n\n', b"data: never\n\n")
    engine.release()

    answer = await served.chat(headers=deadline_in(0.5), stream=True)

    assert b'"deadline_exceeded"' in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")
    await served.settled()


async def test_a_call_that_waits_at_its_deadline_never_runs(kairos, engine):
    engine.answer = engine.when_released
    served = await kairos(engine.url, max_num_seqs=1)
    running = asyncio.create_task(served.chat())
    await engine.called()

    assert (await served.chat(headers=deadline_in(0.2))).status == 504
    engine.release()

    assert (await running).status == 200
    assert len(engine.calls) == 1
    await served.settled()


async def test_a_deadline_that_has_passed_is_said_at_once(served):
    assert (await served.chat(headers=deadline_in(-1))).status == 504
    assert served.facts.all(Arrived) == []
