"""What is read of a request's body, and the one splice that is ever made in one."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import EXPECTED_COMPLETION_TOKENS, InvalidRequest
from kairos.request import Body, read_body
from kairos.request.body import text_size
from kairos.request.identity.conversation import Prompt
from kairos.request.parameters import RIGHT

ASKED = b'{"include_usage":true}'


def read(content: bytes, *, chat: bool = False, streams_usage: bool = True) -> Body:
    return read_body(content, chat=chat, streams_usage=streams_usage)


def without_prompt(body: Body) -> Body:
    assert not any(getattr(body.prompt, part) for part in Prompt.__struct_fields__)
    return msgspec.structs.replace(body, prompt=Prompt())


# Surrogates have no UTF-8, so no client can send them. The texts try to look like the key.
texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ['"stream_options":', '{"stream_options": {}}', "stream_options", "\\", '"', "é\u2028\n\0"]
)


def json_values(keys):
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


NEVER_PASS = {
    *("priority", "kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
}
KNOWN = {name for name in RIGHT if name.isidentifier()} | NEVER_PASS
values = json_values(texts)
fields = st.dictionaries(texts.filter(lambda name: name not in KNOWN), values, max_size=5)


def members(value: dict, *, spaced: bool, ascii_only: bool) -> str:
    """The object as JSON text, without its braces."""
    separators = (" ,\n ", "\t: ") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only)[1:-1]


styles = st.fixed_dictionaries({"spaced": st.booleans(), "ascii_only": st.booleans()})


@st.composite
def bodies(draw, **more):
    """Any JSON object with some fields that a body may have and `more`, in any order, as text."""
    whole = draw(fields) | {"messages": draw(st.lists(values, max_size=3))} | more
    order = draw(st.permutations(list(whole)))
    return "{" + members({k: whole[k] for k in order}, **draw(styles)) + "}"


@given(bodies(stream=True), st.sampled_from(["", " ", "\n\t"]))
def test_a_stream_without_options_gets_them_at_its_start_and_is_else_unchanged(body, lead):
    content = (lead + body).encode()

    spliced = read(content)

    at = content.index(b"{") + 1
    inserted = b'"stream_options":' + ASKED + b","
    assert spliced.content == content[:at] + inserted + content[at:]
    assert json.loads(spliced.content) == json.loads(content) | {
        "stream_options": {"include_usage": True}
    }
    assert spliced.usage_added


# Not nested: where the key occurs twice, a table below says what happens.
free_texts = texts.filter(lambda name: name != "stream_options")
free_values = json_values(free_texts)
free_fields = st.dictionaries(
    free_texts.filter(lambda name: name not in KNOWN), free_values, max_size=3
)
options = st.none() | st.builds(
    lambda others, usage: others | usage,
    st.dictionaries(free_texts.filter(lambda name: name != "include_usage"), free_values),
    st.sampled_from([{}, {"include_usage": False}, {"include_usage": None}]),
)


@given(free_fields, free_fields, options, styles)
def test_stream_options_that_ask_for_no_usage_are_replaced_by_ones_that_do(
    left, right, asked, style
):
    colon = "\n: " if style["spaced"] else ":"
    before = "{" + members(left | {"stream": True}, **style) + ',"stream_options"' + colon
    after = (", " + members(right, **style) if right else "") + " }"
    content = (before + json.dumps(asked) + after).encode()

    spliced = read(content)

    assert spliced.content.startswith(before.encode())
    assert spliced.content.endswith(after.encode())
    replaced = spliced.content[len(before.encode()) : -len(after.encode())]
    assert json.loads(replaced) == (asked or {}) | {"include_usage": True}
    assert spliced.usage_added


@given(
    st.data(),
    st.sampled_from(
        [
            {"stream": True, "stream_options": {"include_usage": True}},
            {"stream": True, "stream_options": {"x": 1, "include_usage": True}},
            {"stream": False},
            {"stream": None},
            {},
            {"stream": False, "stream_options": {"include_usage": False}},
        ]
    ),
)
def test_a_body_that_asks_for_usage_itself_or_does_not_stream_is_untouched(data, known):
    content = data.draw(bodies(**known)).encode()

    untouched = read(content)

    assert untouched.content == content
    assert not untouched.usage_added


@pytest.mark.parametrize(
    "content",
    [
        b'{"stream":true,"stream_options":{"a":1},"stream_options":{"b":1}}',
        b'{"stream":true,"stream_options":{"a":1},"extra":{"stream_options":{"a":1}}}',
        b'{"stream":true,"stream\\u005foptions":{"a":1}}',
        b'{"stream":true,"stream\\u005foptions":{"a":1},"extra":{"stream_options":{"b":22}}}',
    ],
    ids=["twice", "nested too", "escaped", "escaped and nested"],
)
def test_stream_options_that_cannot_be_changed_safely_are_left_to_the_engine(content):
    tokens = text_size(content) // 4
    assert without_prompt(read(content)) == Body(
        content, stream=True, prompt_tokens=tokens, completion_tokens=256
    )


def test_nothing_is_spliced_on_a_route_that_tells_no_usage_on_demand():
    content = b'{"stream":true}'

    assert read(content, streams_usage=False).content == content


def test_the_last_of_repeated_keys_counts_as_it_does_for_the_engine():
    content = (
        b'{"model":"a","stream":true,"max_tokens":9,"max_tokens":3,"stream":false,"model":"b"}'
    )

    assert without_prompt(read(content)) == Body(
        content,
        model="b",
        stream=False,
        prompt_tokens=len(content) // 4,
        completion_tokens=3,
        completion_limit=3,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, EXPECTED_COMPLETION_TOKENS),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_output_tokens": 7}, 7),
        ({"max_completion_tokens": 5, "max_tokens": 7}, 5),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
        ({"max_tokens": 2**31 - 1}, EXPECTED_COMPLETION_TOKENS),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": -1}, 1),
    ],
)
def test_the_expected_length_is_the_clients_limit_up_to_the_usual_length(limits, expected):
    assert read(json.dumps(limits).encode()).completion_tokens == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7.0}, 7),
        ({"max_completion_tokens": 5000, "max_tokens": 7}, 5000),
        ({"max_completion_tokens": None, "max_output_tokens": 7}, 7),
        ({"max_tokens": 10**9 - 1}, 10**9 - 1),
        ({"max_tokens": 10**9}, None),
        ({"max_tokens": 2e9}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),  # llama.cpp: without end
    ],
)
def test_the_answers_limit_is_what_the_client_tells_if_it_is_one(limits, expected):
    assert read(json.dumps(limits).encode()).completion_limit == expected


@given(st.integers(3, 5000))
def test_the_prompt_is_estimated_at_four_bytes_a_token(length):
    content = b'{"prompt":"%s","seed":12345,"model":"m"}' % (b"x" * length)

    assert read(content).prompt_tokens == (length + 1) // 4


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": ["hello there"]}, '["hello there"'),
        ({"messages": ["hello"], "tools": [{}, {}]}, '[{}, {}]["hello"'),
        ({"input": "hello there", "instructions": "Be brief."}, '"Be brief.""hello there'),
        ({"input": "hello", "instructions": None, "tools": None}, '"hello'),
        ({"input": ["hello", "there"]}, '["hello", "there"'),
        ({"documents": ["hello there"]}, '{"documents": ["hello there"]}'),
    ],
)
def test_of_a_body_only_what_becomes_the_prompt_counts_and_all_of_it_where_none_is_known(
    body, text
):
    assert read(json.dumps(body).encode()).prompt_tokens == len(text) // 4


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("[5]", 1),
        ("[5,7,1000]", 3),
        (" [ 5, 7 ]", 2),
        ("[[5, 7], [1, 2, 3]]", 5),
    ],
)
@pytest.mark.parametrize("field", ["prompt", "input"])
def test_tokens_that_come_as_such_are_counted(field, prompt, tokens):
    body = read(f'{{"{field}":{prompt}}}'.encode())

    assert (body.prompt_tokens, body.prompt_is_counted) == (tokens, True)


@pytest.mark.parametrize("prompt", ['"1, 2"', '["1, 2", "3"]', "[]", "null"])
def test_other_prompts_are_not_taken_for_tokens(prompt):
    assert not read(f'{{"prompt":{prompt}}}'.encode()).prompt_is_counted


@pytest.mark.parametrize("slash", [b"/", rb"\/"])
def test_images_in_the_body_count_nothing(slash):
    image = b'"data:image' + slash + b"png;base64," + b"iVBOR" * 10_000 + b'"'
    around = b'[{"content":[{"url":%s},{"url":%s}]}'

    content = b'{"messages":%s]}' % (around % (image, image))
    assert read(content).prompt_tokens == len(around % (b"", b"")) // 4


def test_sound_is_not_text():
    sound = b'"data":"%s"' % (b"UklGRi+\\/" * 200)
    content = b'{"messages":[{"input_audio":{%s}},"hello"]}' % sound

    assert read(content).prompt_tokens == len(b'[{"input_audio":{}},"hello"') // 4


def test_a_long_word_is_text():
    content = b'{"messages":["%s"]}' % (b"x" * 100_000)

    assert read(content).prompt_tokens == 100_003 // 4


DATA = b"iVBOR" * 1000
TEXT = "Grüße, мир, 你好! " * 50


@pytest.mark.parametrize(
    "part",
    [
        b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % DATA,
        b'{"type":"image_url","image_url":{"url":"DATA:image/png;name=a.png;base64,%b"}}' % DATA,
        b'{"type":"video_url","video_url":{"url":"data:video/mp4;base64,%b"}}' % DATA,
        b'{"type":"input_audio","input_audio":{"data":"%b","format":"wav"}}' % DATA,
        b'{"type":"file","file":{"file_data":"data:application/pdf;base64,%b"}}' % DATA,
        b'{"type":"file","file":{"file_data":"%b"}}' % DATA,
        b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%b"}}' % DATA,
        b'{"type":"image_embeds","image_embeds":"%b"}' % DATA,
        b'{"type":"image_pil","image_pil" : "%b"}' % DATA.replace(b"V", b"_").replace(b"B", b"-"),
    ],
)
def test_data_of_every_kind_that_engines_accept_is_no_text(part):
    content = b'{"messages":[{"role":"user","content":[%b]}]}' % part
    assert read(content).prompt_tokens < 60


@pytest.mark.parametrize("field", ["content", "text", "arguments"])
def test_what_looks_like_data_where_a_text_stands_is_text(field):
    content = b'{"messages":[{"role":"user","%b":"%b"}]}' % (field.encode(), DATA)
    assert read(content).prompt_tokens >= len(DATA) // 4


@pytest.mark.parametrize("text", [TEXT, "\n\tx = 1\n" * 50, 'say "hi" ' * 50, "日本語" * 200])
def test_a_text_counts_as_much_however_json_spells_it(text):
    body = {"messages": [{"role": "user", "content": text}]}
    spelt, escaped = json.dumps(body, ensure_ascii=False), json.dumps(body)
    plain = len(text.encode()) // 4
    assert read(spelt.encode()).prompt_tokens == pytest.approx(plain, rel=0.2, abs=15)
    assert read(escaped.encode()).prompt_tokens == pytest.approx(plain, rel=0.2, abs=15)


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_runs_of_blanks_count_little(blank):
    content = json.dumps({"messages": [{"role": "user", "content": blank * 40_000}]}).encode()
    assert read(content).prompt_tokens < 2_000


def test_text_after_an_image_still_counts():
    image = b'"data:image/png;base64,iVBOR"'
    content = b'{"messages":[%s,"%s"]}' % (image, b"word" * 100)

    assert read(content).prompt_tokens == len(b'[,"%s"' % (b"word" * 100)) // 4


def test_a_prompt_is_never_estimated_at_nothing():
    assert read(b"{}").prompt_tokens == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"[]", "it must be an object, but is a list"),
        (b"null", "it must be an object, but is null"),
        (b"", "truncated"),
        (b'{"model":"a"', "truncated"),
        (b"{'model':1}", "malformed"),
        (b'{"model":"a"} x', "trailing characters"),
        (b'{"model":"\xff"}', "it is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_whole_body_is_told(content, named):
    with pytest.raises(InvalidRequest) as refused:
        read(content)

    assert str(refused.value).startswith("the body cannot be read: ")
    assert named in str(refused.value)
    assert refused.value.param is None


@pytest.mark.parametrize(
    ("content", "was"),
    [
        (b"{}", "missing"),
        (b'{"messages":{}}', "an object"),
        (b'{"messages":null}', "null"),
        (b'{"messages":"hi"}', "a string"),
    ],
)
def test_a_chat_needs_a_list_of_messages(content, was):
    with pytest.raises(InvalidRequest, match=f"'messages' must be a list of .*; it is {was}"):
        read(content, chat=True)


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"stream":true,"stream_options":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    ],
    ids=["open", "messages", "unknown field", "stream_options"],
)
def test_nesting_without_end_is_refused_and_nothing_worse(content):
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        read(content)


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda b: b'{"stream":true,' + b + b"}"))
def test_no_bytes_do_worse_than_be_refused(content):
    try:
        read(content)
    except InvalidRequest as refused:
        assert refused.param or str(refused).startswith("the body cannot be read: ")  # noqa: PT017
