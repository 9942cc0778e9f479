"""Attacks by engines, and by callers on engines' connections. Each says what it did before."""

import asyncio
import io
import json
import os

import pytest

from tests.attacks.found.test_tenants import HERS, MINE, keys

CHAT = "/v1/chat/completions"


def answer(body, *lines):
    head = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", *lines]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


MODELS = answer(json.dumps({"data": [{"id": "tiny"}]}).encode())
SECRET = answer(b'{"id":"chatcmpl-hers","text":"the secret"}')
SOUND = answer(b'{"id":"chatcmpl-mine","text":"sound"}')


class RawEngine:
    """An engine whose answers to calls are bytes that a test says.

    `after`: a step after the answer to a call was written, with its connection. `takes_bodies`:
    whether it reads a body before it answers.
    """

    def __init__(self):
        self.answers, self.requests = [], []
        self.after, self.takes_bodies = None, True
        self._tasks = set()

    async def serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET "):
                    writer.write(MODELS)
                    continue
                lines = head.decode().lower().split("\r\n")
                length = next(int(each[16:]) for each in lines if each[:15] == "content-length:")
                body = await reader.readexactly(length) if self.takes_bodies else b""
                self.requests.append((head, body))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.after is not None:
                    await self.after(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def end(self):
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def raw():
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield engine
    server.close()
    await engine.end()


async def test_an_answer_to_another_tenant_is_nobodys(kairos, raw):
    """Answer a call twice: the second time just before the next caller's call is sent.

    Before: another tenant's answer went to the next caller. Now: each has its own.
    """
    served = await kairos(raw.url, key=keys())
    raw.answers += [SECRET, SOUND]
    written = []

    async def keep(_, writer):
        written.append(writer)

    raw.after = keep
    first = await served.chat(headers=HERS | {"X-Request-Id": "hers"})
    assert "the secret" in first.body.decode()
    descriptor = written[0].get_extra_info("socket").fileno()
    wire = await served.connect()
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer mine\r\nContent-Length: "
    # Kairos's event loop finds both at once, and the call first.
    os.write(wire.descriptor, head.encode() + b"%d\r\n\r\n" % len(body) + body)
    os.write(descriptor, SECRET)
    assert "sound" in (await wire.answer()).body.decode()


async def test_an_answer_that_comes_late_is_not_the_next_callers(kairos, raw):
    """Answer a call once more after the next caller's has come, before that is answered.

    Before: the next caller had the other tenant's answer. Now: the call is made again.
    """
    served = await kairos(raw.url, key=keys())
    raw.answers += [SECRET, SECRET + SOUND, SOUND, SOUND]
    await served.chat(headers=HERS | {"X-Request-Id": "hers"})
    for _ in range(2):
        answered = await served.chat(headers=MINE | {"X-Request-Id": "mine"})
        assert "the secret" not in answered.body.decode()


async def test_a_call_is_not_sent_behind_the_rest_of_a_body(kairos, raw):
    """Send a large body to an engine that answers at its head, and leaves the connection open.

    Before: the next caller's call went behind what was left of the body, as a part of it for the
    engine, and was answered by nobody. Now: it has a connection of its own.
    """
    served = await kairos(raw.url)
    rest, raw.takes_bodies = bytearray(), False

    async def read_on(reader, _):
        raw.after, raw.takes_bodies = None, True
        while data := await reader.read(1 << 20):
            rest.extend(data)

    raw.after = read_on
    raw.answers += [answer(b'{"refused":1}'), SOUND]
    body = b'{"model":"tiny","prompt":"%b"}' % (b"x" * (20 << 20))
    kind = {"Content-Type": "application/json"}
    await served.ask("POST", "/v1/completions", data=io.BytesIO(body), headers=kind)
    assert "sound" in (await served.chat()).body.decode()
    assert len(raw.requests) == 2
    assert b"chat/completions" not in rest


@pytest.mark.parametrize(
    "connection",
    [
        ("x-lab-token",),
        ("X-Lab-Token, keep-alive",),
        ("keep-alive", "x-lab-token"),
        ("x-lab-token", "keep-alive"),
        ("close ,\tX-LAB-TOKEN",),
    ],
)
async def test_what_a_clients_connection_names_ends_at_kairos(kairos, engine, connection):
    """Name a header in `Connection`, in one or in the first of two lines, that is passed on else.

    Before: it reached the engine. Now: it ends at Kairos; others still pass.
    """
    served = await kairos(engine.url, pass_headers=("x-lab-*",))
    lines = [f"Connection: {each}" for each in connection]
    wire = await served.connect()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    sent = "X-Lab-Token: secret", "X-Lab-Run: 7", "Content-Type: application/json"
    await wire.post(CHAT, body, *lines, *sent)
    assert (await wire.answer()).status == 200
    assert "x-lab-token" not in engine.calls[0].headers
    assert engine.calls[0].headers["x-lab-run"] == "7"


@pytest.mark.parametrize(
    "lines",
    [
        (b"Connection: x-leak", b"X-Leak: 1"),
        (b"Connection: keep-alive, X-Leak", b"x-leak: 1"),
        (b"Connection: keep-alive", b"Connection: x-leak", b"X-Leak: 1"),
        (b"Keep-Alive: timeout=9", b"Proxy-Connection: close", b"TE: trailers", b"Trailer: x"),
        (b"Set-Cookie: a=b", b"Access-Control-Allow-Origin: *", b"Server: vllm"),
        (b"Strict-Transport-Security: max-age=9", b"Clear-Site-Data: *", b"Alt-Svc: h3"),
        (b"X-Kairos-Reason: made_up", b"X-Request-Id: made-up", b"Upgrade: h2c"),
    ],
)
async def test_what_an_engines_connection_names_ends_at_kairos(kairos, raw, lines):
    """Answer with headers that belong to the connection, to a browser's rules or to Kairos.

    Before and now: none of them reaches the client; the answer's own do.
    """
    served = await kairos(raw.url)
    raw.answers += [answer(b"{}", b"X-Of-It: 1", *lines)]
    answered = await served.chat()
    assert answered.headers["x-of-it"] == "1"
    sent = {each.partition(b":")[0].decode().lower() for each in lines} - {"x-request-id"}
    assert not sent & {each.lower() for each in answered.headers}
    assert "made" not in answered.headers["x-request-id"]


async def test_interim_answers_and_trailers_end_at_kairos(kairos, raw):
    """Send early hints before the answer, and trailers behind it, with headers for the client.

    Before and now: the client has one answer, with the headers of that alone.
    """
    served = await kairos(raw.url)
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nX-Hint: 1\r\n\r\n" * 50
    chunked = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        b"Trailer: X-Late\r\n\r\n2\r\n{}\r\n0\r\nX-Late: 1\r\nSet-Cookie: a=b\r\n\r\n"
    )
    raw.answers += [b"HTTP/1.1 100 Continue\r\n\r\n" + hints + chunked]
    answered = await served.chat()
    assert (answered.status, answered.body) == (200, b"{}")
    assert not {"link", "x-hint", "x-late", "set-cookie", "trailer"} & {
        each.lower() for each in answered.headers
    }
