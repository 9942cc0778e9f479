"""Questions that a worker relays to the process that decides, over a socket of the test's own."""

import asyncio

import pytest

from kairos.cluster.workers.relay import Relay

SCOPE = {
    "method": "GET",
    "path": "/v1/models/a b",
    "query_string": b"x=1",
    "headers": [
        (b"authorization", b"Bearer k"),
        (b"x-request-id", b"r"),
        (b"accept", b"text/plain"),
        (b"cookie", b"c"),
        (b"connection", b"upgrade"),
    ],
}
ANSWER = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nRetry-After: 3\r\n"
    b"X-Request-Id: r\r\nDate: now\r\nServer: s\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
)


@pytest.fixture
async def ask(tmp_path):
    """Ask a decider that answers with these bytes; return what it was sent, and what it said."""
    asked, says = [], [b""]

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(says[-1])
        writer.close()

    async def ask(said, **scope):
        says.append(said)
        sent = []

        async def send(message):
            sent.append(message)

        await Relay(tmp_path / "s")(SCOPE | scope, None, send)
        start, body = sent
        return start["status"], dict(start["headers"]), body["body"]

    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    ask.asked = asked
    async with server:
        yield ask


async def test_the_decider_is_asked_as_the_worker_was_without_what_is_of_its_connection(ask):
    await ask(ANSWER + b"slow")
    target, *headers = ask.asked[0].decode().strip().split("\r\n")
    assert target == "GET /v1/models/a%20b?x=1 HTTP/1.1"
    assert sorted(headers) == [
        *("accept: text/plain", "authorization: Bearer k", "connection: close"),
        *("host: decider", "x-request-id: r"),
    ]


async def test_its_answer_has_the_deciders_headers_but_for_those_of_their_connection(ask):
    of_it = {b"content-type": b"text/plain", b"retry-after": b"3", b"x-request-id": b"r"}
    assert await ask(ANSWER + b"slow") == (429, of_it | {b"content-length": b"4"}, b"slow")


async def test_an_answer_to_head_has_headers_and_no_body(ask):
    status, headers, body = await ask(ANSWER, method="HEAD")
    assert (status, headers[b"retry-after"], body) == (429, b"3", b"")


@pytest.mark.parametrize("said", [b"", ANSWER, ANSWER + b"slo", b"what?\r\n\r\n"])
async def test_a_decider_that_ends_before_its_answer_does_is_unavailable(ask, said):
    status, _, body = await ask(said)
    assert status == 503
    assert b"restarting; try again" in body
