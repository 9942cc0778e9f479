"""Attacks by web pages, names and paths. Each says what it did before, and what it does now."""

import asyncio
from hashlib import sha256

import pytest

from kairos.settings import KeySettings
from tests.e2e.client import LIMIT_S

MODELS, CHAT = "/v1/models", "/v1/chat/completions"
CALL = b'{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}'


def keys(**roles):
    return tuple(
        KeySettings(sha256=sha256(name.encode()).hexdigest(), tenant=name, role=role)
        for name, role in roles.items()
    )


async def status(wire, head, *lines, body=b""):
    """Send a request as it is spelt, and return the status of its answer."""
    length = (f"Content-Length: {len(body)}",) if body else ()
    text = "\r\n".join([f"{head} HTTP/1.1", *lines, *length, "", ""])
    await wire.send(text.encode("latin-1") + body)
    return (await wire.answer()).status


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8001/health?",
        "localhost:8001/health#",
        "localhost:x@evil.example",
        "localhost:/ui/ask/",
        "[::1]/health?",
        "[::1]@evil.example",
        "[::1]evil.example",
        "127.0.0.1:80:evil.example",
    ],
)
async def test_a_known_name_with_more_behind_it_is_no_known_name(kairos, engine, host):
    """Give the operators' port a Host that changes the path, user or name of a URL.

    Before: passed as the known name (200). By a Starlette before 1.0.1 the path of the request's
    URL is then /health, which asks for no key. Now: 421.
    """
    served = await kairos(engine.url)
    wire = await served.connect(served.service.admin_url)
    assert await status(wire, "GET /admin/status", f"Host: {host}") == 421
    assert await status(wire, "GET /admin/status", "Host: localhost") == 200


async def test_a_target_and_a_host_that_differ_are_refused(kairos, engine):
    """Name one host in the target, which a proxy goes by, and a known one in the header.

    Before: the target's was passed over (200), also while Kairos answered only to known names.
    Now: 400; a target with the header's own host is served, and one without a header is its host.
    """
    served = await kairos(engine.url)
    for target, lines, expected in (
        (f"http://evil.example{MODELS}", ("Host: localhost",), 400),
        (f"http://localhost:1{MODELS}", ("Host: localhost",), 400),
        (f"http://localhost@evil.example{MODELS}", ("Host: localhost",), 400),
        (f"http://evil.example{MODELS}", (), 421),
        (f"http://LOCALHOST{MODELS}", ("Host: localhost",), 200),
        (f"http://localhost:8000{MODELS}", ("Host: localhost:8000",), 200),
    ):
        wire = await served.connect()
        assert await status(wire, f"GET {target}", *lines) == expected, target


async def test_a_page_loads_nothing_as_a_picture(kairos, engine):
    """Have a page of another site load routes as pictures: browsers name no origin there.

    Before: answered (200), so the page could time the answers, and engines were asked. Now: 403.
    """
    served = await kairos(engine.url)
    picture = "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"
    wire = await served.connect()
    for path in (MODELS, "/v1/responses/resp_1", "/v1/agents", "/metrics"):
        assert await status(wire, f"GET {path}", "Host: localhost", *picture) == 403
    assert not engine.calls


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://localhost:3000"])
async def test_a_form_makes_no_call(kairos, engine, origin):
    """Post a call as a page's form does: as text, which needs no permission; `null` is a sandbox.

    Before: the engine made the call. Now: 403, and nothing reaches it.
    """
    served = await kairos(engine.url)
    wire = await served.connect()
    lines = "Host: localhost", f"Origin: {origin}", "Content-Type: text/plain"
    assert await status(wire, f"POST {CHAT}", *lines, body=CALL) == 403
    assert not engine.calls


async def test_two_keys_are_refused(kairos, engine):
    """Show two keys: a proxy in front may go by the first, and Kairos went by the last.

    Before: 200, as the tenant of the last. Now: 400 `two_authorizations`.
    """
    served = await kairos(engine.url, key=keys(a="caller", b="caller"))
    first, last = "Authorization: Bearer a", "Authorization: Bearer b"
    wire = await served.connect()
    await wire.send(f"GET {MODELS} HTTP/1.1\r\nHost: a\r\n{first}\r\n{last}\r\n\r\n".encode())
    answer = await wire.answer()
    assert (answer.status, answer.error()["code"]) == (400, "two_authorizations")


async def test_a_key_in_the_url_goes_nowhere(kairos, engine, caplog):
    """Show a key in the query, as clients of Google's API do.

    Before: it went on to the engine, whose log has URLs. Now: it is left out there, other
    parameters pass, and it is in no line of Kairos's log. It lets nobody in.
    """
    served = await kairos(engine.url, key=keys(a="caller"))
    shown = {"Authorization": "Bearer a"}
    for spelt in ("key", "api_key", "API-KEY", "%6bey", "access_token", " key"):
        path = f"{CHAT}?x=1&{spelt}=sk-secret&y=2"
        assert (await served.ask("POST", path, data=CALL)).status == 401
        headers = shown | {"Content-Type": "application/json"}
        assert (await served.ask("POST", path, data=CALL, headers=headers)).status == 200
    assert {call.path for call in engine.calls} == {f"{CHAT}?x=1&y=2"}
    assert "sk-secret" not in caplog.text


async def test_no_spelling_of_a_path_avoids_its_rule(kairos, engine):
    """Spell routes in other ways: case, slashes, dots, encodings, parameters.

    Before and now: 404 or 405 without a key, and nothing reaches an engine.
    """
    served = await kairos(engine.url, key=keys(a="caller"))
    wire = await served.connect()
    for path in (
        *("/V1/chat/completions", "//v1/chat/completions", "/v1//chat/completions"),
        *("/v1/chat/completions/", "/v1/./chat/completions", "/v1/%63hat/completions"),
        *("/v1/chat%2fcompletions", "/v1/chat/completions;x", "/v1/x/../chat/completions"),
        *("/agent/a/agent/b/v1/chat/completions", "/agent/../v1/chat/completions"),
    ):
        found = await status(wire, f"POST {path}", "Host: a", body=CALL)
        assert found in (401, 404, 405), path
    assert not engine.calls


async def test_odd_numbers_in_headers_and_queries_are_refused(kairos, engine):
    """Send numbers that Python's `int` takes, or fails at, in each header and parameter.

    Before and now: 400, 404 or 422, never an error of Kairos's own.
    """
    served = await kairos(engine.url)
    numbers = "9" * 5000, "\u00b2", "+5", "1_000", "-0", "1e9", "NaN", "0x10", "9" * 19
    names = (
        *("X-Kairos-Deadline", "X-Kairos-Deadline-Ms", "X-Kairos-Attempt", "X-Kairos-Started-At"),
        *("X-Kairos-Budget-Calls", "X-Kairos-Budget-Tokens", "X-Kairos-Budget-Ms"),
        *("X-Stainless-Read-Timeout", "Range", "traceparent"),
    )
    wire = await served.connect()
    for name in names:
        for number in numbers:
            lines = "Host: a", "Content-Type: application/json", f"{name}: {number}"
            found = await status(wire, f"POST {CHAT}", *lines, body=CALL)
            assert found in (200, 400, 504), (name, number[:9])
    for path in ("/v1/files?limit=", "/v1/batches?limit=", "/v1/workflows/", "/v1/flows/"):
        for number in (*numbers[2:], "9" * 5000, "%00", "%ff", "..%2f..%2fetc", "%ed%a0%80"):
            found = await status(wire, f"GET {path}{number}", "Host: a")
            assert found in (200, 400, 404, 405, 422), (path, number[:9])


async def test_a_request_behind_another_is_none_of_a_body(kairos, engine):
    """Hide a request in a body with two lengths, or with odd ones.

    Before and now: one answer of 400, and the connection is closed. Nothing reaches an engine.
    """
    served = await kairos(engine.url)
    hidden = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    for lines in (
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: +5",),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding : chunked",),
        (b"Transfer-Encoding: chunked\r\n: x",),
    ):
        wire = await served.connect()
        head = b"\r\n".join([b"POST /v1/completions HTTP/1.1", b"Host: a", *lines])
        await wire.send(head + b"\r\n\r\n0\r\n\r\n" + hidden)
        async with asyncio.timeout(LIMIT_S):
            answered = await wire.reader.read()
        assert answered.startswith(b"HTTP/1.1 400 "), lines
        assert answered.count(b"HTTP/1.1 ") == 1, lines
    assert not engine.calls
