"""Bodies go through unchanged, and at once."""

import asyncio
import io
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from kairos.core import Finished

CHAT = "/v1/chat/completions"
ODD = (
    b'{ "model":"tiny",\n\t"messages":[{"role":"user","content":"\\u00e4\xc3\xa4 \\/ "}],'
    b'"temperature":1.0e0, "temperature":0.70,"unknown":{"b":1,"a":[ ]} }\r\n'
)
DONE = b"data: [DONE]\n\n"
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)


def chunk(text):
    return b'data: {"choices":[{"delta":{"content":"%s"}}],"usage":null}\n\n' % text


async def test_a_body_reaches_the_engine_byte_for_byte(served, engine):
    large = ODD.replace(b"unknown", b"x" * 3_000_000)
    for body in (ODD, large):
        assert (await served.ask("POST", CHAT, data=io.BytesIO(body))).status == 200

    assert [call.body for call in engine.calls] == [ODD, large]
    assert all(call.headers["content-length"] == str(len(call.body)) for call in engine.calls)


async def test_an_answer_reaches_the_client_byte_for_byte(served, engine):
    answer = b'{ "choices":[],\n "usage":{"prompt_tokens":3,"completion_tokens":1} }\n'
    large = b'{"x":"' + b"y" * (9 << 20) + b'"}'
    headers = {"Content-Type": "application/json", "X-Of-The-Engine": "kept"}

    for sent in (answer, large):
        engine.answer = lambda _, sent=sent: asyncio.sleep(
            0, web.Response(body=sent, headers=headers)
        )
        got = await served.chat()
        assert (got.status, got.body == sent, got.headers["x-of-the-engine"]) == (200, True, "kept")

    finished = await served.facts.seen(Finished)
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 1)


async def test_a_compressed_answer_is_passed_on_as_it_is(served, engine):
    squeezed = b"\x1f\x8b not really gzip \x00\xff"

    async def answer(_):
        return web.Response(body=squeezed, headers={"Content-Encoding": "gzip"})

    engine.answer = answer
    wire = await served.post_raw(CHAT, {"model": "tiny", "messages": []})
    got = await wire.answer()

    assert (got.headers["content-encoding"], got.body) == ("gzip", squeezed)


@pytest.mark.parametrize(
    ("sent", "reaches"),
    [
        (
            b'{"model":"tiny","messages":[],"stream":true}',
            b'{"stream_options":{"include_usage":true},"model":"tiny","messages":[],"stream":true}',
        ),
        (
            b' {"messages":[], "stream":true, "stream_options": {"include_usage" : false}} ',
            b' {"messages":[], "stream":true, "stream_options": {"include_usage":true}} ',
        ),
        (b'{"messages":[],"stream":true,"stream_options":{"include_usage":true},"a":1.0}', None),
        (b'{"messages":[],"stream":false,"stream_options":null}', None),
    ],
    ids=["added", "corrected", "asked for", "no stream"],
)
async def test_the_only_change_to_a_body_is_to_ask_a_stream_for_its_usage(
    served, engine, sent, reaches
):
    engine.answer = engine.stream(chunk(b"a"), USAGE, DONE)
    engine.release(3)
    answer = await served.ask("POST", CHAT, data=sent)

    assert engine.calls[0].body == (reaches or sent)
    if b'"stream":true' in sent:
        assert answer.body == chunk(b"a") + (b"" if reaches else USAGE) + DONE
        finished = await served.facts.seen(Finished)
        assert (finished.prompt_tokens, finished.completion_tokens) == (7, 2)
        assert finished.cached_tokens == 4


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/v1/audio/speech"])
async def test_routes_that_do_not_take_stream_options_are_not_given_any(served, engine, path):
    body = b'{"model":"tiny","input":"a","stream":true}'
    await served.ask("POST", path, data=body, headers={"Content-Type": "application/json"})

    assert engine.calls[0].body == body


async def test_each_event_of_a_stream_is_passed_on_before_the_next_one_comes(served, engine):
    parts = [chunk(b"one"), b": a comment\n\n", chunk(b"two") + b"data: {", b"}\n\n", DONE]
    passed_on = [*parts[:2], chunk(b"two"), b"data: {}\n\n", DONE]
    engine.answer = engine.stream(*parts)
    asks = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    wire = await served.post_raw(CHAT, asks)

    chunks = wire.chunks()
    for number, events in enumerate(passed_on):
        engine.release()
        if number == 0:
            assert (await wire.head())[0] == 200
        assert await asyncio.wait_for(anext(chunks), 60) == events
    assert [rest async for rest in chunks] == []


async def test_an_answer_that_is_neither_json_nor_events_is_passed_on_as_it_comes(served, engine):
    parts = [b"ID3\x00", b"\xff\xfb sound"]
    engine.answer = engine.stream(*parts, content_type="audio/mpeg")
    wire = await served.post_raw("/v1/audio/speech", {"input": "hello"})

    engine.release()
    assert (await wire.head())[0] == 200
    chunks = wire.chunks()
    assert await asyncio.wait_for(anext(chunks), 60) == parts[0]
    engine.release()
    assert [rest async for rest in chunks] == [parts[1]]


async def test_a_stream_of_which_usage_is_removed_is_passed_on_as_it_comes_too(served, engine):
    half = chunk(b"three")
    engine.answer = engine.stream(
        chunk(b"one"), chunk(b"two") + half[:9], half[9:] + USAGE[:20], USAGE[20:], DONE
    )
    wire = await served.post_raw(CHAT, {"messages": [], "stream": True})

    chunks = wire.chunks()
    for number, part in enumerate([chunk(b"one"), chunk(b"two"), half]):
        engine.release()
        if number == 0:
            await wire.head()
        assert await asyncio.wait_for(anext(chunks), 60) == part
    engine.release(2)
    assert [rest async for rest in chunks] == [DONE]


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_neither_side_waits_to_fill_packets(served, engine):
    """Nagle's algorithm would hold a small chunk back until the one before it is acknowledged."""
    engine.answer = engine.when_released
    asking = asyncio.create_task(served.chat())
    await engine.called()
    ports = {urlsplit(served.url).port: "clients", urlsplit(engine.url).port: "engine"}
    sides = [(_side(sock, ports), sock) for sock in _open_sockets()]
    nodelay = {
        side: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for side, sock in sides
    }
    for _, sock in sides:
        sock.close()
    engine.release()
    await asking

    assert nodelay["clients"]
    assert nodelay["engine"]


def _open_sockets():
    """Copies of this process's connected TCP sockets."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            is_socket = str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
        if is_socket:
            sock = socket.socket(fileno=os.dup(int(entry.name)))
            if sock.family == socket.AF_INET and _peer(sock):
                yield sock
            else:
                sock.close()


def _peer(sock):
    try:
        return sock.getpeername()
    except OSError:
        return None


def _side(sock, ports):
    """Kairos's own end: what clients connected to, or what it connected to the engine."""
    local, peer = sock.getsockname()[1], sock.getpeername()[1]
    names = {"clients": local, "engine": peer}
    return next((side for port, side in ports.items() if names[side] == port), None)
