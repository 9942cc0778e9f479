"""Large bodies: the same is read of them and refused as of small ones, and little is made of it."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.core import InvalidRequest
from kairos.request import BESIDE_BYTES, MemberNames, read_body
from kairos.request.body import _MEDIA, _without_media
from kairos.request.large_body import LARGE_BYTES

PADDING = b'{"padding":"' + b"x" * LARGE_BYTES + b'",'
CHAT = b'"messages":[{"role":"user","content":"hi"}]'

_texts = st.text(st.sampled_from('ab"\\/[]{},:é😀\n\x7f'), max_size=6)
_keys = st.sampled_from(["model", "stop", "messages", "x", 'a"\\', "é", ""])
_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)
_objects = st.dictionaries(_keys, _values, max_size=4)


def _written(value, spaced, escaped):
    separators = (" , ", "\n:\t") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=escaped).encode()


_written_objects = st.builds(_written, _objects | _values, st.booleans(), st.booleans())


@st.composite
def _hurt(draw):
    """Draw a text with a few bytes replaced, left out or put in."""
    content = bytearray(draw(_written_objects))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(content)))
        more = draw(st.sampled_from([b"", b'"', b"\\", b",", b"]", b"}", b"0", b"-", b"e", b"\0"]))
        content[at : at + draw(st.integers(0, 2))] = more
    return bytes(content)


@given(_hurt())
@example(rb'{"a":"\ud800"}')
@example(rb'{"a":"\udc00"}')
@example(rb'{"a":"\ud83d\ude00"}')
@example(rb'{"a":"\ud83d \ude00"}')
@example(rb'{"\u006dodel":"m"}')
@example(b'{"a":01}')
@example(b'{"a":1.}')
@example(b'{"a":-}')
@example(b'{"a":1e+}')
@example(b'{"a":1,}')
@example(b'{"a":[1,]}')
@example(b'{"a":[,1]}')
@example(b'{"a"}')
@example(b"{} x")
@example(b'{"a":nul}')
@example(b"[]")
@example(b"")
@example(b'{"a":tru')
def test_what_msgspec_cannot_read_is_refused_and_nothing_else(reading, content):
    try:
        content.decode()
        whole = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        whole = None

    try:
        found, count = MemberNames(["model", "stop", "messages", 'a"\\', "é", ""]).places_and_count(
            content, reading
        )
    except InvalidRequest:
        found = None

    assert (found is None) == (whole is None)
    if found is None:
        return
    assert count >= len(whole)
    assert found.keys() == whole.keys() & {"model", "stop", "messages", 'a"\\', "é", ""}
    for name, place in found.items():
        assert content[place.start : place.end] == bytes(whole[name])
        value = json.loads(content[place.start : place.end])
        assert place.items == (len(value) if isinstance(value, list) else place.items)


def _outcome(content, **route):
    try:
        read = read_body(content, **route)
    except InvalidRequest as error:
        return str(error)
    return read.model, read.stream, read.sequences, read.completion_limit, read.told, read.prefix


_parameters = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", None, 5]),
        "stream": st.sampled_from([True, None, "true", 7]),
        "stream_options": st.sampled_from([{}, None, 5]),
        "max_tokens": st.sampled_from([5, "5", 1.5, -7]),
        "n": st.sampled_from([1, 3, "3", 0]),
        "stop": st.sampled_from(["a", ["a"], [5], ["a"] * 300]),
        "stop_token_ids": st.sampled_from([[1], [-1], [1] * 129, None]),
        "logit_bias": st.sampled_from([{"1": 1}, {str(n): 1 for n in range(1_025)}, False]),
        "temperature": st.sampled_from([0.5, "0.5", "nan"]),
        "user": st.sampled_from(["u", None]),
        "tools": st.sampled_from([[{}], None, [5], {}]),
        "messages": st.sampled_from([[{"role": "user"}], [{}], [{"role": "a", "content": [5]}]]),
        "prompt": st.sampled_from(["a", [1, 2], [[1], "a"], [1.5], [[1, -1]]]),
        "input": st.sampled_from(["a", [1], [{}], [[]], ["a", 5], 5]),
    },
)


_routes = st.sampled_from([(True, True), (False, True), (False, False)])


def _outcomes(parameters, kind):
    """Return that of a small body, and that of a large one."""
    route = {"chat": kind[0], "streams_usage": kind[1]}
    content = json.dumps(parameters | {"z": 1}).encode()
    return _outcome(content, **route), _outcome(PADDING + content[1:], **route)


@given(_parameters, _routes)
@example({"temperature": "0.5", "stop": ["a"] * 300}, (True, True))
def test_a_body_is_read_or_refused_however_large(parameters, kind):
    small, large = _outcomes(parameters, kind)

    # Of several faults either may be the one that is named.
    assert large == small or (isinstance(small, str) and isinstance(large, str))


@given(_parameters, _routes, st.integers(0, 15))
def test_a_fault_is_named_in_the_same_words_however_large_the_body(parameters, kind, which):
    names = sorted(parameters)
    one = {each: parameters[each] for each in names[which : which + 1]}
    small, large = _outcomes({"messages": [{"role": "user"}], "prompt": "a", **one}, kind)

    assert large == small


MANY = 1_000_000


@pytest.mark.parametrize(
    ("route", "before", "item", "after"),
    [
        ("chat", b'"messages":[{"role":"a","content":[', b"{}", b"]}]}"),
        ("chat", b'"messages":[{"role":"a","content":[', b'""', b"]}]}"),
        ("chat", b'"messages":[', b"{}", b"]}"),
        ("chat", CHAT + b',"tools":[', b"{}", b"]}"),
        ("chat", CHAT + b',"stop":[', b'""', b"]}"),
        ("chat", CHAT + b',"stop_token_ids":[', b"1", b"]}"),
        ("chat", CHAT + b',"logit_bias":[', b"[]", b"]}"),
        ("chat", CHAT + b',"logit_bias":{', b'"1":1', b"}}"),
        ("chat", CHAT + b',"stream":true,"stream_options":{', b'"1":1', b"}}"),
        ("chat", CHAT + b',"priority":1,"x":{', b'"1":1', b"}}"),
        ("chat", CHAT + b',"x":[', b'{"stream_options":1}', b'],"stream":true}'),
        ("text", b'"prompt":[', b'""', b"]}"),
        ("text", b'"prompt":[', b"[]", b"]}"),
        ("text", b'"prompt":[', b"1", b",-1]}"),
        ("vectors", b'"input":[', b'""', b"]}"),
        ("vectors", b'"input":[', b"[1]", b"]}"),
        ("vectors", b'"input":[', b"{}", b"]}"),
    ],
)
def test_nothing_is_made_of_members_beyond_their_bounds(reading, route, before, item, after):
    content = b"{" + before + b",".join([item] * (MANY // len(item))) + after
    route = {"chat": route == "chat", "streams_usage": route != "vectors"}
    tracemalloc.start()
    try:
        _outcome(content, **route)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 6 * len(content), peak_bytes / len(content)


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b'"priority":1,"x":2}', b'"x":2}'),
        (b'"x":2,"priority":1}', b'"x":2}'),
        (b'"x":2 , "priority" : 1 }', b'"x":2  }'),
        (b'"priority":1,"kv_transfer_params":{"a":[1,{}]}}', b"}"),
        (b'"x":2,"priority":1,"kv_transfer_params":{"priority":5}}', b'"x":2}'),
        (b'"priority":1 ,\n"x":2,"bootstrap_room":null}', b'"x":2}'),
        (b'"x":{"priority":1}}', b'"x":{"priority":1}}'),
        (b'"priority":null,"kv_transfer_params":null,"x":1,"bootstrap_host":"a"}', b'"x":1}'),
    ],
)
def test_what_kairos_alone_says_is_cut_out_and_every_other_byte_stays(content, left):
    read = read_body(PADDING + content, chat=False, streams_usage=False)

    padding = PADDING if left != b"}" else PADDING[:-1]
    assert read.content.replace(b"\n", b"") == padding + left


def test_a_large_body_says_once_what_kairos_alone_says():
    with pytest.raises(InvalidRequest, match="'priority' must not be there more than once"):
        read_body(PADDING + b'"priority":1,"priority":2}', chat=False, streams_usage=False)


def test_a_parameter_has_a_longest_text():
    name = b"m" * BESIDE_BYTES
    with pytest.raises(InvalidRequest, match="'model' has more than 1048576 bytes"):
        read_body(b'{"model":"%b"}' % name, chat=False, streams_usage=False)


_pieces = st.sampled_from(
    [
        *(
            b'"',
            b"data",
            b"DATA",
            b":",
            b";base64",
            b",",
            b" ",
            b"image/png",
            b'"content"',
            b'"x_y"',
        ),
        *(b"A" * 1_023, b"A", b"\\/", b"=", b"!", b"a" * 65, b"x" * 255, b"\n"),
    ]
)


@given(st.lists(_pieces, max_size=30).map(b"".join))
@example(b'"data:image/png;base64,AAAA"')
@example(b'"data:' + b"x" * 255 + b';base64,A"')
@example(b'"data:' + b"x" * 256 + b';base64,A"')
@example(b'"data:;base64,' * 3)
@example(b'"x":"' + b"A" * 1_024 + b'"')
@example(b'"content":"' + b"A" * 1_024 + b'"')
@example(b'"x" \n : "' + b"A" * 1_024 + b'"' * 2)
def test_media_is_the_same_to_c_and_to_python(reading, text):
    assert bytes(_without_media(text, reading)) == _MEDIA.sub(b"", text)
