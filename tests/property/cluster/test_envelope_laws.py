"""Hostile messages: whatever the headers and the value are, they are understood or refused."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.cluster import forward_message, read_envelope, read_value, write_message
from kairos.cluster.bus.envelope import OTHERS_LIMIT
from kairos.cluster.pool.messages import read_call_headers
from kairos.core import InvalidRequest, Message
from tests.support.examples import examples
from tests.support.schema import problems

TRACE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
NEEDED = {
    "kairos-msg-id": "w",
    "kairos-app": "qa",
    "kairos-agent": "router",
    "kairos-upstream": "user",
    "kairos-started-at": "1",
    "traceparent": TRACE,
}
CALL = {"kairos-type": "call", "kairos-request-id": "r", "kairos-reply-to": "kairos.replies.host"}
OPTIONAL = ("kairos-version", "kairos-parent", "kairos-attempt", "kairos-deadline")

numbers = st.integers(-2, 10**20).map(str) | st.sampled_from(
    ["007", "+1", "-0", "1e3", "5.0", " 1", "1\n", "null", "", "true", "٣", "0", "999", "1000"]
)
versions = st.sampled_from(["1", "1.0", "1.7", "1.07", "2", "0", "1.", "1.x", "", "1\n", "1.99999"])
words = st.text(max_size=200) | st.text("az09_-.:@/+= \n", max_size=130)
traces = st.sampled_from([TRACE, TRACE.replace("00-", "ff-"), TRACE + "-x", TRACE + "\n", "0" * 55])
long = st.sampled_from([127, 128, 129, 8_191, 8_192, 8_193]).map(lambda length: "x" * length)
texts = numbers | versions | words | traces | long
changes = st.dictionaries(
    st.sampled_from([*NEEDED, *CALL, *OPTIONAL]) | st.text(max_size=140) | long, texts, max_size=4
)
gone = st.sets(st.sampled_from([*NEEDED, *CALL]), max_size=1)
many = st.integers(0, 70).map(lambda count: {f"other-{n}": "" for n in range(count)})


def with_headers(headers, value=b"{}"):
    return Message(key=headers.get("kairos-msg-id", ""), value=value, headers=headers)


@examples(500)
@given(changes, gone, many)
@example({"kairos-version": "1.9", "later": "x"}, set(), {})
@example({"kairos-started-at": "1e3"}, set(), {})
@example({"other": "x" * 8_192, "n" * 128: ""}, set(), {})
@example({"other": "x" * 8_193}, set(), {})
@example({"n" * 129: ""}, set(), {})
@example({}, set(), {f"other-{n}": "" for n in range(48)})
@example({}, set(), {f"other-{n}": "" for n in range(49)})
def test_headers_are_an_envelope_just_where_the_schema_says_so(changes, gone, many):
    headers = {k: v for k, v in (NEEDED | many | changes).items() if k not in gone}
    message = with_headers(headers)
    others = headers.keys() - NEEDED.keys() - set(OPTIONAL)
    valid = len(others) <= OTHERS_LIMIT and not problems(
        "message", {"key": message.key, "headers": headers, "value": {}}
    )

    try:
        envelope = read_envelope(message)
    except InvalidRequest:
        assert not valid
    else:
        assert valid
        onward = forward_message(message, envelope, agent="next", value={}, parent=envelope.parent)
        again = read_envelope(onward)
        assert again.version == headers.get("kairos-version", "1")
        assert onward.headers.items() >= {(name, headers[name]) for name in others}


@examples(500)
@given(changes, gone)
def test_headers_that_the_schema_allows_are_an_llm_call(changes, gone):
    headers = {k: v for k, v in (CALL | changes).items() if k not in gone}
    call = {"key": "default", "headers": headers, "value": {"messages": [{}]}}

    if problems("call", call) == []:
        assert read_call_headers(headers).request_id == headers["kairos-request-id"]
    else:
        with suppress(InvalidRequest):
            read_call_headers(headers)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
objects = st.dictionaries(st.text(), values, max_size=4)
cuts = st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=3)


@given(objects, cuts)
def test_a_value_is_an_object_or_refused_and_goes_on_unchanged(value, cuts):
    raw = bytearray(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    for at, bytes_ in cuts:
        raw[at : at + len(bytes_)] = bytes_
    message = with_headers(NEEDED, bytes(raw))

    try:
        found = read_value(message)
    except InvalidRequest:
        return

    assert isinstance(found, dict)
    envelope = read_envelope(message)
    onward = forward_message(message, envelope, agent="next", value=found, parent=None)
    assert read_value(onward) == found


@given(st.binary() | st.binary().map(lambda raw: b'{"a":' + raw + b"}"))
def test_bytes_are_an_object_or_refused(raw):
    with suppress(InvalidRequest):
        assert isinstance(read_value(Message(key="w", value=raw)), dict)


@given(st.integers(1, 70), st.sampled_from(["[%s]", '{"a":%s}', '[1,{"b":2},%s]']))
def test_a_value_is_nested_64_levels_at_most(depth, wrap):
    inner = "1"
    for _ in range(depth - 1):
        inner = wrap % inner
    levels = depth + (wrap.startswith("[1") and depth > 1)  # beside the innermost is one more
    message = Message(key="w", value=b'{"a":%s}' % inner.encode())

    try:
        read_value(message)
    except InvalidRequest:
        assert levels > 64
    else:
        assert levels <= 64


def test_a_version_that_is_not_known_is_named():
    envelope = read_envelope(with_headers(NEEDED))
    newer = write_message(envelope, {}).headers | {"kairos-version": "2.1"}

    with pytest.raises(InvalidRequest, match=r"is of version '2\.1'; known here: 1 and 1\.x"):
        read_envelope(with_headers(newer))
