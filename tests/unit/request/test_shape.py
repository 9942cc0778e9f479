"""Check that msgspec and Python refuse the same as `reading.c`, in the same words."""

import ctypes
import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.core import InvalidRequest
from kairos.request import MAX_MESSAGES, MAX_TOOLS, read_body, shape
from kairos.request.native import Judged
from kairos.request.parameters import MAX_DEPTH, MAX_PARTS

_keys = st.sampled_from(["role", "content", "type", "x", 'a"\\', "é"])
_leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(0, 2)
_texts = st.text(st.sampled_from('ab"\\[]{},:é😀\n'), max_size=5)
_values = st.recursive(
    _leaves | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)
_message = st.fixed_dictionaries(
    {"role": st.just("user") | _texts},
    optional={"content": _texts | st.lists(_values, max_size=3) | _values, "x": _values},
)
_lists = st.lists(_message | _message | _values, max_size=4)
_ids = st.lists(st.integers(0, 10**6), max_size=4)
_prompts = st.lists(_ids, max_size=3) | _ids | st.lists(st.integers(-5, 10**10) | _ids, max_size=4)


def written(value, *, spaced=False, escaped=True):
    separators = (" , ", "\n: ") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=escaped).encode()


_pieces = st.sampled_from(
    [
        *(b"a", b"abcdefgh", "é".encode(), "中".encode(), "😀".encode()),
        *(b"\x80", b"\xc3", b"\xe4\xb8", b"\xf5", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
        *(b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf"),
    ]
)

written_lists = st.builds(written, _lists, spaced=st.booleans(), escaped=st.booleans())


places = st.integers(0, 80)


def refusal(check, *arguments):
    try:
        check(*arguments)
    except InvalidRequest as refused:
        return str(refused)
    return None


CHECKS = [shape.check_messages, shape.check_tools, shape.check_input]


@pytest.mark.parametrize("check", CHECKS)
@given(written_lists)
@example(b'[{"role":"a","role":5}]')
@example(b'[{"role":5,"role":"a"}]')
@example(b'[{"content":[]},{"role":"a"}]')
@example(b'[{"role":"a"},{"content":[]}]')
@example(b'[{"role":"a","content":"\\\\"},5]')
@example(b'[{"r\\u006fle":"a","c\\u006fntent":5}]')
@example(b'[{"role":"a","content":[[]]}]')
@example(b'[{"role":"a","content":[5]}]')
@example(b'[{"role":"a","content":[{"x":[5,[]]},"b"]}]')
@example(b"[]")
def test_msgspec_finds_the_same_as_c(check, reading, items):
    assert refusal(check, items, reading) == refusal(check, items, None)


@given(st.builds(written, _prompts | _values, spaced=st.booleans()), st.integers(1, 20_000))
@example(b"[1234567890]", 1)
@example(b"[[1],2]", 1)
@example(b"[[[1]]]", 1)
@example(b"[1,2]", 16_384)
@example(b"[1,2]", 16_385)
def test_msgspec_finds_the_same_prompts_as_c(reading, prompt, choices):
    assert refusal(shape.check_prompt, prompt, choices, reading) == refusal(
        shape.check_prompt, prompt, choices, None
    )


@given(
    st.binary(max_size=40)
    | st.text(st.characters(codec="utf-8"), max_size=12).map(str.encode)
    | st.lists(_pieces, max_size=8).map(b"".join)
)
def test_text_is_what_python_can_decode(reading, content):
    is_text = True
    try:
        content.decode()
    except UnicodeDecodeError:
        is_text = False

    assert bool(reading.is_utf8(content, len(content))) is is_text


def deepest(value):
    if isinstance(value, dict):
        value = [*value.values()]
    return 1 + max(map(deepest, value), default=0) if isinstance(value, list) else 0


@given(_values)
def test_depth_is_that_of_lists_and_objects_whatever_strings_hold(reading, value):
    content = written(value, escaped=False)
    much = b"[%s,%s]" % (b",".join([b"[]"] * MAX_DEPTH), content)  # so that Python counts, too

    assert shape.depth(content, reading) == deepest(value)
    assert shape.depth(much, reading) == max(2, 1 + deepest(value))
    assert shape.depth(much, None) == max(2, 1 + deepest(value))


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_nested_as_deep_as_allowed_is_read_and_what_is_deeper_is_not(reading, compiled):
    def check(depth):
        content = b'{"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
        shape.check_text(content, reading if compiled else None)

    check(MAX_DEPTH)
    with pytest.raises(InvalidRequest, match="at most 128 lists and objects"):
        check(MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[],"tools":[{"a":"\xc3"}]}',
        b'{"messages":[],"x":{"\xed\xa0\x80":1}}',
        b'{"messages":[],"metadata":{"a":"\xf8"}}',
        b'{"messages":[],"stream":true,"stream_options":{"\xff":1}}',
    ],
)
def test_what_is_no_utf8_is_refused_wherever_it_stands(content):
    with pytest.raises(InvalidRequest, match="it is not UTF-8"):
        read_body(content, chat=True, streams_usage=True)


@pytest.mark.parametrize(
    "text", [r"\ud800", r"\ud800 and more", r"\udc00", r"\ud800\u0041", r"\q", r"\u12", "\n", "\0"]
)
@pytest.mark.parametrize("field", ["messages", "x", "tools", "metadata"])
def test_text_that_json_does_not_have_is_refused_wherever_it_stands(field, text):
    content = f'{{"{field}":[{{"role":"user","content":"{text}"}}],"messages":[]}}'

    with pytest.raises(InvalidRequest, match=r"the body cannot be read: .*(malformed|truncated)"):
        read_body(content.encode(), chat=True, streams_usage=True)


@pytest.mark.parametrize("size", [MAX_MESSAGES, MAX_MESSAGES + 1])
def test_c_counts_items_as_msgspec_does(reading, size):
    messages = written([{"role": "user", "content": "a"}] * size)
    tools = written([{}] * size)

    for check, content, most in (
        (shape.check_messages, messages, MAX_MESSAGES),
        (shape.check_tools, tools, MAX_TOOLS),
        (shape.check_input, messages, MAX_MESSAGES),
    ):
        told = refusal(check, content, reading)
        assert told == refusal(check, content, None)
        assert (told is None) == (size <= most)


def test_c_counts_parts_as_msgspec_does(reading):
    for count in (2_000, 2_048, 2_049, MAX_PARTS + 1):
        for kind in ("text", "image_url"):
            parts = [{"type": kind}] * count
            messages = written([{"role": "user", "content": parts}])
            told = refusal(shape.check_messages, messages, reading)
            assert told == refusal(shape.check_messages, messages, None)
            assert (told is None) == (count <= (MAX_PARTS if kind == "text" else 2_048))


@given(st.binary(max_size=60) | st.builds(lambda items, cut: items[:cut], written_lists, places))
def test_c_takes_what_is_no_json_too(reading, content):
    """It is given none, but a fault of its own must not be how that shows."""
    judged = Judged()
    for rules in range(8):
        reading.judge_items(content, len(content), rules, ctypes.addressof(judged))
    reading.judge_prompts(content, len(content), ctypes.addressof(judged))
    reading.depth(content, len(content))
    reading.is_token_ids(content, len(content), 10)
    with suppress(InvalidRequest):
        shape.check_text(content, reading)
