"""Real clients: curl, Java and raw sockets, with offers of other protocols and old versions."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from kairos.host import start_child
from kairos.settings import KeySettings
from tests.e2e.client import LIMIT_S

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
UPLOAD, STREAM = "/v1/audio/transcriptions", "a stream"
JSON, FORM = "application/json", "multipart/form-data; boundary=xyz"
EVENTS = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % at for at in range(3)]
STREAMED = b"".join(EVENTS) + b"data: [DONE]\n\n"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 2_000}]}
FORMED = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    + bytes(range(256)) * 400
    + b"\r\n--xyz--\r\n"
)
CALLS = {  # path, kind, body
    CHAT: (CHAT, JSON, json.dumps(ASKED).encode()),
    STREAM: (CHAT, JSON, json.dumps(ASKED | {"stream": True}).encode()),
    TOKENIZE: (TOKENIZE, JSON, json.dumps(ASKED).encode()),
    UPLOAD: (UPLOAD, FORM, FORMED),
}
H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


async def echo(request):
    """Answer with the size of the body, so that a client shows that it arrived."""
    body = await request.read()
    if request.path != CHAT or not (asked := json.loads(body)).get("stream"):
        return web.json_response({"path": request.path, "bytes": len(body)})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    assert asked["messages"] == ASKED["messages"]
    for each in (*EVENTS, b"data: [DONE]\n\n"):
        await response.write(each)
    return response


def right(call):
    path, _, body = CALLS[call]
    return STREAMED if call == STREAM else {"path": path, "bytes": len(body)}


def read(call, body):
    return body if call == STREAM else json.loads(body)


async def output_of(*command):
    process = await start_child(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output


CURLS = {
    "HTTP/1.1": (),
    "an offer of HTTP/2": ("--http2",),
    "HTTP/1.0": ("--http1.0",),
    "a body in chunks": ("-H", "Transfer-Encoding: chunked"),
    "an offer of HTTP/2 and a body in chunks": ("--http2", "-H", "Transfer-Encoding: chunked"),
    "a body after 100 Continue": ("-H", "Expect: 100-continue"),
    "an offer, and a body after 100 Continue": ("--http2", "-H", "Expect: 100-continue"),
    "an offer of TLS": ("-H", "Connection: Upgrade", "-H", "Upgrade: TLS/1.2"),
    "an offer of WebSockets with a body": ("-H", "Connection: upgrade", "-H", "Upgrade: websocket"),
}


@pytest.mark.parametrize("curl", CURLS)
async def test_a_call_is_answered_however_curl_sends_it(served, engine, tmp_path, curl):
    engine.answer = echo
    for call, (path, kind, body) in CALLS.items():
        sent = tmp_path / "body"
        sent.write_bytes(body)
        command = (
            "curl",
            "-sS",
            "--max-time",
            str(LIMIT_S),
            *CURLS[curl],
            "-H",
            f"Content-Type: {kind}",
        )
        output = await output_of(*command, "--data-binary", f"@{sent}", served.url + path)
        assert read(call, output) == right(call)


async def test_a_call_is_answered_to_javas_own_client(served, engine, tmp_path):
    engine.answer = echo
    asked = []
    for number, (path, kind, body) in enumerate(CALLS.values()):
        sent = tmp_path / str(number)
        sent.write_bytes(body)
        asked += [path, kind, str(sent)]
    source = Path(__file__).with_name("Asks.java")
    java = "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(source)
    output = await output_of(*java, served.url, *asked)
    answers = dict(zip(CALLS, output.split(b"\0")[:-1], strict=True))
    for call, answer in answers.items():
        status, _, body = answer.partition(b" ")
        assert (status, read(call, body)) == (b"200", right(call))


async def test_what_follows_an_offer_on_its_connection_is_answered_too(served, engine):
    """Requests sent ahead, each with an offer, in pieces of any size."""
    engine.answer = echo
    _, _, body = CALLS[TOKENIZE]
    head = "\r\n".join(
        [f"POST {TOKENIZE} HTTP/1.1", "Host: a", *H2C, f"Content-Length: {len(body)}"]
    )
    sent = (head.encode() + b"\r\n\r\n" + body) * 3
    for size in (1, 7, 100, len(sent)):
        wire = await served.connect()
        for at in range(0, len(sent), size):
            await wire.send(sent[at : at + size])
        for _ in range(3):
            assert (await wire.answer()).json() == right(TOKENIZE)


WEBSOCKET = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n"
REFUSED = {
    "a WebSocket where calls are streamed": (
        "GET /v1/realtime HTTP/1.1",
        WEBSOCKET,
        426,
        "no_websocket",
    ),
    "a WebSocket for a call": (f"GET {CHAT} HTTP/1.1", WEBSOCKET, 426, "no_websocket"),
    "a tunnel": ("CONNECT other:443 HTTP/1.1", "", 405, "method_not_allowed"),
    "a version to come": ("GET /v1/models HTTP/2.0", "", 505, "http_version"),
    "a version long gone": ("GET /v1/models HTTP/0.9", "", 505, "http_version"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_not_spoken_is_refused_with_a_reason_and_closed(served, engine, what):
    line, more, status, code = REFUSED[what]
    wire = await served.connect()
    await wire.send(f"{line}\r\nHost: a\r\n{more}\r\n".encode())
    answer = await wire.answer()
    assert (answer.status, answer.error()["code"]) == (status, code)
    assert answer.headers.get("upgrade") == ("HTTP/1.1" if status == 426 else None)
    assert ("allow" in answer.headers) == (status == 405)
    assert await wire.reader.read() == b""
    assert engine.calls == []


async def test_http_2_at_once_is_refused_in_words(served):
    wire = await served.connect()
    await wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    answer = await wire.answer()
    assert answer.status == 505
    assert b"HTTP/1.1" in answer.body


async def test_an_answer_to_http_1_0_that_breaks_off_does_not_end_like_a_whole_one(served, engine):
    def reset(transport):
        transport.abort()

    async def read_all():
        async with asyncio.timeout(LIMIT_S):
            while await wire.reader.read(1 << 16):
                pass

    engine.answer = engine.stream(b"sound", then=reset, content_type="audio/mpeg")
    wire = await served.connect()
    await wire.send(b"POST /v1/audio/speech HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    engine.release()
    _, headers = await wire.head()
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    assert await wire.reader.readexactly(5) == b"sound"
    engine.release()
    with pytest.raises(ConnectionError):
        await read_all()


PAGE, OTHER = "https://chat.example", "https://other.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-kairos-agent",
}


@pytest.mark.parametrize(
    "path", [CHAT, "/agent/writer/v1/chat/completions", "/v1/models", TOKENIZE]
)
async def test_a_page_of_a_named_origin_may_ask_and_read(kairos, engine, path):
    engine.answer = echo
    served = await kairos(engine.url, cors_origins=(PAGE,))
    asked = await served.ask("OPTIONS", path, headers={"Origin": PAGE, **PREFLIGHT})
    assert (asked.status, asked.body) == (204, b"")
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert (
        asked.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    )
    method = "GET" if path == "/v1/models" else "POST"
    answer = await served.ask(method, path, headers={"Origin": PAGE}, json=ASKED)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("named", [(), (PAGE,)], ids=["none is named", "another is named"])
@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_a_page_of_another_origin_may_neither_ask_nor_read(kairos, engine, named, path):
    served = await kairos(engine.url, cors_origins=named)
    for method in ("OPTIONS", "POST"):
        answer = await served.ask(method, path, headers={"Origin": OTHER, **PREFLIGHT}, json=ASKED)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_any_origin_may_be_named_and_is_answered_where_it_is_refused_too(kairos, engine):
    served = await kairos(
        engine.url, cors_origins=("*",), key=(KeySettings(sha256="0" * 64, tenant="lab"),)
    )
    answer = await served.ask("POST", CHAT, headers={"Origin": OTHER}, json=ASKED)
    assert answer.status == 401
    assert answer.headers["access-control-allow-origin"] == OTHER


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/v1/models/tiny", 200),
        ("HEAD", "/v1/models/none", 404),
        ("HEAD", "/health", 200),
        ("HEAD", "/metrics", 200),
        ("HEAD", CHAT, 405),
        ("HEAD", "/v1/responses/resp_1", 200),
        ("OPTIONS", CHAT, 204),
        ("OPTIONS", "/v1/models", 204),
        ("OPTIONS", "*", 204),
    ],
)
async def test_probes_are_answered_without_a_body(served, method, path, status):
    wire = await served.connect()
    await wire.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    found, headers = await wire.head()
    assert found == status
    assert ("allow" in headers) == (method == "OPTIONS" or status == 405)
    await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await wire.answer()).json()["data"]
