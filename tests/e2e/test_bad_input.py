"""Whatever is sent, the answer says what is wrong in OpenAI's format, and the gateway goes on."""

import asyncio
import gzip
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kairos.core import Arrived

CHAT = "/v1/chat/completions"
GOOD = b'{"model":"tiny","messages":[]}'
JSON = {"Content-Type": "application/json"}

UNREADABLE = {
    "nothing": b"",
    "half an object": b'{"messages":[',
    "no object": b"[]",
    "null": b"null",
    "text": b"messages",
    "zeros": b"\0" * 10,
    "more after the end": GOOD + b"}",
    "no UTF-8": b'{"messages":[],"model":"\xff"}',
    "UTF-16": GOOD.decode().encode("utf-16"),
    "half a surrogate pair": b'{"messages":[],"model":"\\ud800"}',
    "no UTF-8 in a message": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "no UTF-8 in a field that nobody knows": b'{"messages":[],"a":{"\xff":1}}',
    "half a surrogate pair in a message": b'{"messages":[{"role":"user","content":"\\udc00"}]}',
    "nested deeply": b'{"messages":[],"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "nested deeper than any schema": b'{"messages":[],"a":' + b"[" * 128 + b"]" * 128 + b"}",
}
COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/responses", "/v1/embeddings"
WRONG = [
    (CHAT, b'{"model":"tiny"}', "messages"),
    (CHAT, b'{"messages":"Hello"}', "messages"),
    (CHAT, b'{"messages":null}', "messages"),
    (CHAT, b'{"messages":[5]}', "messages[0]"),
    (CHAT, b'{"messages":[{"content":"Hello"}]}', "messages[0].role"),
    (CHAT, b'{"messages":[{"role":"user","content":5}]}', "messages[0].content"),
    (CHAT, b'{"messages":[],"model":5}', "model"),
    (CHAT, b'{"messages":[],"stream":"yes"}', "stream"),
    (CHAT, b'{"messages":[],"stream":true,"stream_options":[]}', "stream_options"),
    (CHAT, b'{"messages":[],"max_tokens":"many"}', "max_tokens"),
    (CHAT, b'{"messages":[],"max_tokens":-2}', "max_tokens"),
    (CHAT, b'{"messages":[],"max_tokens":1' + b"0" * 5000 + b"}", "max_tokens"),
    (CHAT, b'{"messages":[],"max_completion_tokens":1.5}', "max_completion_tokens"),
    (CHAT, b'{"messages":[],"n":0}', "n"),
    (CHAT, b'{"messages":[],"n":100000000}', "n"),
    (CHAT, b'{"messages":[],"temperature":1e999}', "temperature"),
    (CHAT, b'{"messages":[],"tools":{}}', "tools"),
    (CHAT, b'{"messages":[],"stop":[5]}', "stop[0]"),
    (COMPLETIONS, b'{"prompt":{}}', "prompt"),
    (COMPLETIONS, b'{"prompt":[-1]}', "prompt[0]"),
    (COMPLETIONS, b'{"prompt":"a","best_of":-1}', "best_of"),
    (COMPLETIONS, b'{"prompt":"a","logprobs":1e9}', "logprobs"),
    (RESPONSES, b'{"input":5}', "input"),
    (RESPONSES, b'{"input":"a","max_output_tokens":"five"}', "max_output_tokens"),
    (EMBEDDINGS, b'{"input":[[1,-2]]}', "input[0][1]"),
]


@pytest.fixture
async def served(kairos, engine):
    """A Kairos that must still serve when the test is over."""
    served = await kairos(engine.url, max_body_bytes=1 << 20)
    yield served
    assert (await served.chat()).status == 200


@pytest.fixture
async def refused(served):
    """`await refused(...)`: what a POST is answered, which reached neither queue nor engine."""

    async def ask(body=GOOD, path=CHAT, headers=None, method="POST"):
        answer = await served.ask(method, path, data=body, headers=headers)
        assert served.facts.all(Arrived) == []
        return answer.status, answer.error()

    return ask


async def test_a_body_that_cannot_be_read_is_a_bad_request(refused):
    for what, body in UNREADABLE.items():
        status, error = await refused(body)
        assert (status, error["code"]) == (400, "invalid_request"), what
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("the body cannot be read: "), what
        assert len(error["message"]) < 300


async def test_a_field_that_cannot_be_right_is_named_and_no_engine_sees_the_body(refused, engine):
    for path, body, field in WRONG:
        status, error = await refused(body, path)
        assert (status, error["code"], error["param"]) == (400, "invalid_request", field), body
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"'{field}' must be ")
        assert len(error["message"]) < 300
    assert engine.calls == []


async def test_on_other_routes_a_body_is_the_engines_to_judge_but_for_what_is_read(served, engine):
    body = b'{"model":"tiny","messages":[5],"n":"all","tools":{}}'
    answer = await served.ask("POST", "/tokenize", data=body, headers=JSON)

    assert (answer.status, engine.calls[0].body) == (200, body)


async def test_an_unknown_model_is_not_found_and_its_name_not_repeated_at_length(refused):
    status, error = await refused(json.dumps({"messages": [], "model": "x" * 500_000}).encode())

    assert (status, error["code"]) == (404, "model_not_found")
    assert len(error["message"]) < 300


async def test_bodies_in_flight_are_bounded_together_and_give_their_room_back(kairos, engine):
    served = await kairos(engine.url, max_held_bytes=1500)
    engine.answer = engine.when_released
    held = asyncio.create_task(served.chat(padding="x" * 1000))
    await engine.called()

    refused = await served.chat(padding="x" * 1000)
    assert (refused.status, refused.error()["code"]) == (429, "too_much_held")
    assert refused.headers["retry-after"] == "1"
    assert (await served.ask("POST", CHAT, data=b"{" + b" " * 200)).status == 400
    engine.release(2)
    assert (await held).status == 200
    assert (await served.chat(padding="x" * 1000)).status == 200


async def test_a_body_over_the_limit_is_refused_by_its_announced_length(served):
    wire = await served.connect()
    await wire.send(f"POST {CHAT} HTTP/1.1\r\nHost: k\r\nContent-Length: 9999999\r\n\r\n".encode())
    answer = await wire.answer()

    assert answer.status == 413
    assert "1048576 bytes" in answer.error()["message"]


async def test_a_body_over_the_limit_is_refused_as_it_comes(served):
    wire = await served.connect()
    await wire.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    for _ in range(20):
        await wire.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    answer = await wire.answer()

    assert (answer.status, answer.error()["code"]) == (413, "body_too_large")


async def test_a_body_of_just_the_limit_is_served(kairos, engine):
    served = await kairos(engine.url, max_body_bytes=len(GOOD))

    assert (await served.ask("POST", CHAT, data=GOOD)).status == 200
    assert (await served.ask("POST", CHAT, data=GOOD + b" ")).status == 413


async def test_a_client_that_waits_to_be_told_to_send_its_body_is_told(served, engine):
    wire = await served.connect()
    await wire.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(GOOD)}\r\n\r\n".encode()
    )
    assert (await wire.head())[0] == 100
    await wire.send(GOOD)

    assert (await wire.answer()).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "identity"])
async def test_a_body_that_comes_compressed_goes_on_as_it_was(served, engine, encoding):
    content = GOOD if encoding == "identity" else gzip.compress(GOOD)
    wire = await served.post_raw(CHAT, content, f"Content-Encoding: {encoding}")

    assert (await wire.answer()).status == 200
    assert engine.calls[0].body == GOOD
    assert "content-encoding" not in engine.calls[0].headers


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd, gzip", "gzip, gzip", ""])
async def test_other_encodings_are_refused(served, encoding):
    wire = await served.post_raw(CHAT, GOOD, f"Content-Encoding: {encoding}")
    answer = await wire.answer()

    assert (answer.status, answer.error()["code"]) == (415, "unsupported_encoding")
    assert "gzip" in answer.error()["message"]


PACKED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    "content",
    [GOOD, PACKED[:-1], PACKED[:5], PACKED + b"x", PACKED + PACKED, b"\x1f\x8b" + b"x" * 20],
)
async def test_a_body_that_is_no_gzip_is_refused(served, content):
    wire = await served.post_raw(CHAT, content, "Content-Encoding: gzip")

    assert (await wire.answer()).status == 400


async def test_a_body_that_unpacks_to_more_than_is_allowed_is_refused(kairos, engine):
    served = await kairos(engine.url, max_body_bytes=100_000)
    wire = await served.post_raw(CHAT, gzip.compress(b" " * 50_000_000), "Content-Encoding: gzip")

    assert (await wire.answer()).status == 413
    assert (await served.chat()).status == 200


async def test_a_prompt_that_no_instance_can_hold_is_refused_with_both_numbers(kairos, engine):
    served = await kairos(engine.url, kv_tokens=100)
    answer = await served.ask("POST", "/v1/completions", json={"prompt": [7] * 1008})

    assert (answer.status, answer.error()["code"]) == (413, "prompt_too_large")
    assert "1008 KV tokens" in answer.error()["message"]
    assert "holds 100" in answer.error()["message"]
    assert (await served.chat()).status == 200


IDENTITIES = [
    ("X-Kairos-Agent", "a b"),
    ("X-Kairos-Agent", ""),
    ("X-Kairos-App", "x" * 129),
    ("X-Kairos-Workflow-Id", "{}"),
    ("X-Kairos-Upstream", "-x"),
    ("X-Kairos-Started-At", "yesterday"),
    ("X-Kairos-Started-At", "-1"),
    ("X-Kairos-Started-At", "9" * 19),
]


async def test_an_identity_that_is_none_is_a_bad_request(refused):
    for header, value in IDENTITIES:
        status, error = await refused(headers={header: value})
        assert status == 400, (header, value)
        assert header.lower() in error["message"]


ROUTES = [
    ("GET", CHAT, 405),
    ("DELETE", "/v1/embeddings", 405),
    ("PATCH", "/v1/files", 405),
    ("POST", "/metrics", 405),
    ("POST", "/v1/models", 404),
    ("DELETE", "/v1/models/tiny", 404),
    ("POST", "/", 404),
    ("GET", "/v1", 404),
    ("GET", "/" + "x" * 5000, 404),
]


async def test_a_wrong_method_or_route_is_said_to_be_so(refused):
    codes = {404: "not_found", 405: "method_not_allowed"}
    for method, path, status in ROUTES:
        got, error = await refused(path=path, method=method)
        assert (got, error["code"]) == (status, codes[status]), (method, path)
        assert len(error["message"]) < 300


ODD_HTTP = [
    b"GET /nothing HTTP/1.1\r\nHost: [",
    b"GET /nothing HTTP/1.1\r\nHost: a/b?c#d",
    b"GET /nothing HTTP/1.1\r\nHost: \xff",
    b"GET /nothing HTTP/1.1\r\nNo-Host: a",
    b"GET /v1/models HTTP/1.1\r\nHost: [\r\nAuthorization: \xff",
    b"GET /v1/files?a=\xe9&b=%zz HTTP/1.1\r\nHost: k",
    b"GET /v1/files?{}|^`\\ HTTP/1.1\r\nHost: k",
    b"GET /v1/\xff HTTP/1.1\r\nHost: k",
    b"GET /%ff%fe HTTP/1.1\r\nHost: k",
    b"OPTIONS * HTTP/1.1\r\nHost: k",
    b"CONNECT kairos:80 HTTP/1.1\r\nHost: k",
    b"GET /v1/files HTTP/1.1\r\nHost: k\r\nUpgrade: websocket\r\nConnection: upgrade",
    b"GET /v1/files HTTP/1.0",
    b"POST /v1/files HTTP/1.1\r\nHost: k\r\nContent-Length: -1",
    b"POST /v1/files HTTP/1.1\r\nHost: k\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    b"GET /v1/files HTTP/1.1\r\nHost: k\r\nUser-Agent: a\r\n b",
    b"GET /v1/files HTTP/1.1\r\nHost: k\r\nUser-Agent: \x01\x7f\xff",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /v1/files HTTP/1.1\r\n" + b"A: b\r\n" * 10_000,
]


async def test_odd_http_is_answered_or_refused(served):
    for head in ODD_HTTP:
        wire = await served.connect()
        await wire.send(head + b"\r\n\r\n")
        status, headers = await wire.head()
        assert status < 500, head
        kind = headers.get("content-type", "text/plain" if status == 204 else "")
        assert status == 200 or kind.startswith(("application/json", "text/plain")), head


_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"))
_names = st.sampled_from(
    [
        "X-Kairos-Agent", "X-Kairos-Workflow-Id", "X-Kairos-Started-At", "X-Request-Id", "Accept",
        "traceparent", "tracestate", "baggage", "Authorization", "Content-Type", "User-Agent",
        "Content-Encoding", "Cookie", "Expect", "Origin",
    ]
)  # fmt: skip
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_fields = st.sampled_from(
    [
        *("model", "messages", "prompt", "input", "tools", "stream", "stream_options", "stop"),
        *("max_tokens", "max_completion_tokens", "n", "best_of", "logprobs", "top_logprobs"),
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"),
    ]
)
_message = st.fixed_dictionaries({}, optional={"role": st.just("user"), "content": _json})
_objects = st.dictionaries(_fields | st.text(), _json)
_chats = st.builds(lambda rest, said: rest | {"messages": said}, _objects, st.lists(_message))
_bodies = st.binary(max_size=300) | (_objects | _chats).map(lambda body: json.dumps(body).encode())
_NUMBERS = {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
_COUNTS = {"max_tokens", "max_completion_tokens", "n", "best_of", "top_logprobs", "seed"}


def check_fits(path, content):
    """What any engine may take for granted of a body that it is sent, found in another way."""
    body = json.loads(content.decode())
    json.dumps(body, ensure_ascii=False).encode()  # without half a surrogate pair in it
    given = {name: value for name, value in body.items() if value is not None}
    assert isinstance(given.get("model", ""), str)
    assert isinstance(given.get("stream", True), bool)
    assert isinstance(given.get("stream_options", {}), dict)
    assert all(isinstance(each, dict) for each in given.get("tools", []))
    stop = given.get("stop", "")
    assert isinstance(stop, str) or all(isinstance(each, str) for each in stop)
    for name in given.keys() & (_NUMBERS | _COUNTS):
        value = given[name]
        assert type(value) in (int, float)
        assert math.isfinite(value)
        assert name in _NUMBERS or value == int(value)
    for name in given.keys() & {"n", "best_of"}:
        assert 1 <= given[name] <= 1024
    if path == CHAT:
        for message in body["messages"]:
            assert isinstance(message["role"], str)
            assert isinstance(message.get("content"), str | list | None)
    if path == COMPLETIONS:
        assert isinstance(given.get("prompt", ""), str | list)
    if path in (RESPONSES, EMBEDDINGS):
        assert isinstance(given.get("input", ""), str | list)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=_bodies,
    headers=st.dictionaries(_names, _text, max_size=4),
    path=st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"]),
)
async def test_random_bodies_and_headers_are_answered_or_refused(
    served, engine, body, headers, path
):
    engine.calls.clear()
    wire = await served.post_raw(
        path, body, *(f"{name}: {value}" for name, value in headers.items())
    )
    answer = await wire.answer()
    if answer.status == 100:
        answer = await wire.answer()
    await wire.close()

    assert answer.status in (200, 400, 403, 404, 413, 415)  # 403: the name drawn was Origin
    if answer.status != 200:
        answer.error()
    if path != "/tokenize":
        for call in engine.calls:
            check_fits(path, call.body)


async def test_many_bad_requests_at_once_do_not_disturb_the_good_ones(served):
    bodies = [GOOD, b"{", b"", GOOD] * 10
    answers = await asyncio.gather(*(served.ask("POST", CHAT, data=body) for body in bodies))

    assert [answer.status for answer in answers] == [200, 400, 400, 200] * 10
