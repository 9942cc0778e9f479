"""Bodies that no engine could serve are refused, with the field and what would be right; those that
clients of today send are not."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import InvalidRequest
from kairos.request import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_SEQUENCES,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOOLS,
    read_body,
)
from kairos.request import body as bodies
from kairos.request.parameters import MAX_MEDIA, MAX_PARTS, RIGHT
from tests.e2e.test_differential import SHAPES

HELLO = [{"role": "user", "content": "Hello"}]
ROUTES = {
    "chat": {"chat": True, "streams_usage": True},
    "completions": {"chat": False, "streams_usage": True},
    "responses": {"chat": False, "streams_usage": False},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}


def read(body, route="chat"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_body(content, **ROUTES[route])


def refusal(body, route="chat"):
    with pytest.raises(InvalidRequest) as refused:
        read(body, route)
    assert refused.value.status == 400
    return refused.value


def chat(**fields):
    return {"messages": HELLO} | fields


WRONG = {
    "model": [5, [], {}, True],
    "stream": ["perhaps", 2, 0.5, []],
    "stream_options": ["yes", [1], True, 5],
    "max_tokens": ["five", True, 7.5, -2, MAX_TOKENS + 1, 10**30, 1e300, [], {}],
    "max_completion_tokens": ["five", -0.5, -(10**30), []],
    "max_output_tokens": ["5.5", 2.5, {}],
    "n": ["one", "0", 0, -1, 1.5, True, MAX_CHOICES + 1, 10**30],
    "best_of": [0, "1.5", MAX_CHOICES + 1],
    "logprobs": ["yes", -2, 1.5, MAX_LOGPROBS + 1, []],
    "top_logprobs": ["-2", True, -2, MAX_LOGPROBS + 1],
    "temperature": ["warm", "nan", "-inf", True, [], {}, 10**400],
    "top_p": ["one", False],
    "presence_penalty": ["none", []],
    "frequency_penalty": [{}, True],
    "seed": ["one", "1e400", 1.5, 2**63, -(2**63) - 1, True],
    "stop": [5, {}, True, ["a"] * (MAX_STOPS + 1)],
    "stop_token_ids": [5, "5", {}, [5] * 129],
    "allowed_token_ids": [5, "5", {}, [5] * (MAX_LOGPROBS + 1)],
    "logit_bias": [5, "a", True, dict.fromkeys(map(str, range(1025)), 1), [[5, 1]] * 1025],
    "messages": [None, "Hello", {}, 5, HELLO * (MAX_MESSAGES + 1)],
    "tools": ["f", {}, True, 0, [TOOL] * (MAX_TOOLS + 1)],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_that_cannot_be_right_is_named_with_what_would_be(field):
    for value in WRONG[field]:
        refused = refusal(chat(**{field: value}))
        assert refused.param == field, value
        assert str(refused).startswith(f"'{field}' must be {RIGHT[field]}; it is "), value
        assert len(str(refused)) < 200


INSIDE = [
    ({"messages": ["Hello"]}, "messages[0]", "a string"),
    ({"messages": [*HELLO, None]}, "messages[1]", "null"),
    ({"messages": [*HELLO, []]}, "messages[1]", "a list"),
    ({"messages": [{"content": "Hello"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": None, "content": "Hello"}]}, "messages[0].role", "null"),
    ({"messages": [{"role": 5}]}, "messages[0].role", "a number"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a number"),
    ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", "an object"),
    ({"messages": [{"role": "user", "content": True}]}, "messages[0].content", "true or false"),
    ({"messages": [{"role": "a", "content": ["b", []]}]}, "messages[0].content[1]", "a list"),
    ({"messages": [{"role": "a", "content": [None]}]}, "messages[0].content[0]", "null"),
    ({"messages": [{"content": -1, "role": "a"}]}, "messages[0].content", "a number"),
    ({"messages": [*HELLO, {"role": "a", "role\n": 5, "x": {}}, 5]}, "messages[2]", "a number"),
    (chat(tools=[TOOL, "f"]), "tools[1]", "a string"),
    (chat(tools=[5]), "tools[0]", "a number"),
    (chat(tools=[[]]), "tools[0]", "a list"),
    (chat(stop=["a", 5]), "stop[1]", "a number"),
    (chat(stop_token_ids=[5, -1]), "stop_token_ids[1]", "a number that is too large or too small"),
    (chat(stop_token_ids=[2.5]), "stop_token_ids[0]", "a number with a fraction"),
    (chat(allowed_token_ids=[True]), "allowed_token_ids[0]", "true or false"),
]


@pytest.mark.parametrize(("body", "param", "was"), INSIDE)
def test_a_part_that_cannot_be_right_is_named_by_its_place(body, param, was):
    refused = refusal(body)

    assert refused.param == param
    right = RIGHT[re.sub(r"\[\d+\]", "[]", param)]
    assert str(refused) == f"'{param}' must be {right}; it is {was}"


def test_what_a_message_says_is_never_repeated():
    for secret in ("hunter2", ["hunter2"], {"hunter2": "hunter2"}):
        for field in WRONG:
            try:
                read(chat(**{field: secret}))
            except InvalidRequest as refused:
                assert "hunter2" not in str(refused)  # noqa: PT017 - some are fine


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("completions", {"prompt": 5}, "prompt"),
        ("completions", {"prompt": {"id": "x"}}, "prompt"),
        ("completions", {"prompt": [5, "a"]}, "prompt"),
        ("completions", {"prompt": [5, [5]]}, "prompt"),
        ("completions", {"prompt": [-1]}, "prompt[0]"),
        ("completions", {"prompt": [1.5]}, "prompt[0]"),
        ("completions", {"prompt": [2**31]}, "prompt[0]"),
        ("completions", {"prompt": [[5, "a"]]}, "prompt[0][1]"),
        ("completions", {"prompt": [[[5]]]}, "prompt[0][0]"),
        ("completions", {"prompt": [None]}, "prompt[0]"),
        ("completions", {"prompt": ["a"] * (MAX_SEQUENCES + 1)}, "prompt"),
        ("completions", {"prompt": [[5]] * (MAX_SEQUENCES + 1)}, "prompt"),
        ("completions", {"prompt": ["a"] * 200, "n": 100}, "prompt"),
        ("completions", {"prompt": [[5]] * 200, "best_of": 100, "n": 1}, "prompt"),
        ("responses", {"input": 5}, "input"),
        ("responses", {"input": {}}, "input"),
        ("responses", {"input": [None]}, "input[0]"),
        ("responses", {"input": [{"role": 5}]}, "input[0].role"),
        ("responses", {"input": [{"content": 5}]}, "input[0].content"),
        ("responses", {"input": [-5]}, "input[0]"),
        ("responses", {"input": [[5, -5]]}, "input[0][1]"),
        ("responses", {"input": ["a"] * (MAX_MESSAGES + 1)}, "input"),
    ],
)
def test_prompts_and_input_that_cannot_be_right_are_named(route, body, param):
    assert refusal(body, route).param == param


def test_parts_and_media_are_bounded_in_all_messages_together():
    def messages(part, each, count):
        return chat(messages=[{"role": "user", "content": [part] * each}] * count)

    text = {"type": "text", "text": "a"}
    read(messages(IMAGE, MAX_MEDIA // 4, 4))
    read(messages(text, MAX_PARTS // 4, 4))

    assert "2049 images" in str(refusal(messages(IMAGE, MAX_MEDIA + 1, 1)))
    assert "2052 images" in str(refusal(messages(IMAGE, MAX_MEDIA // 4 + 1, 4)))
    assert "16388 parts" in str(refusal(messages(text, MAX_PARTS // 4 + 1, 4)))
    assert refusal({"input": messages(IMAGE, 2049, 1)["messages"]}, "responses").param == "input"


AS_FAR_AS_ALLOWED = [
    chat(n=MAX_CHOICES, best_of=MAX_CHOICES, max_tokens=MAX_TOKENS, logprobs=MAX_LOGPROBS),
    chat(stop=["a"] * MAX_STOPS, top_logprobs=MAX_LOGPROBS, seed=2**63 - 1),
    chat(seed=-(2**63), n=1, max_tokens=-1, top_logprobs=-1),
    chat(tools=[TOOL] * MAX_TOOLS, stop_token_ids=[5] * 128, allowed_token_ids=[5] * 100_000),
    chat(logit_bias=dict.fromkeys(map(str, range(1024)), -100)),
    chat(messages=HELLO * MAX_MESSAGES),
    chat(temperature=1e300, top_p=0, presence_penalty=-2, frequency_penalty=2),
]


@pytest.mark.parametrize("body", AS_FAR_AS_ALLOWED)
def test_what_is_just_within_the_limits_is_read(body):
    read(body)


@pytest.mark.parametrize("field", sorted({*WRONG} - {"messages"}))
def test_null_is_as_good_as_nothing(field):
    assert read(chat(**{field: None})).stream is False


# As libraries and tools send them, beside what OpenAI's SDK does (`SHAPES`).
CLIENTS = {
    "LM Studio": ("chat", chat(model="m", temperature=0.7, max_tokens=-1, stream=True)),
    "no limit, as 32 bits": ("chat", chat(max_tokens=2**31 - 1)),
    "vLLM's own": (
        "chat",
        chat(
            top_k=-1,
            min_p=0.0,
            repetition_penalty=1.05,
            stop_token_ids=[2],
            ignore_eos=True,
            min_tokens=3,
            chat_template_kwargs={"enable_thinking": False},
            guided_json={"type": "object"},
            cache_salt="a",
        ),
    ),
    "llama.cpp's biases": ("chat", chat(logit_bias=[[15043, False], ["Hello", -0.5]])),
    "vLLM's biases": ("chat", chat(logit_bias={"15043": -100, "7": 0.5})),
    "whole numbers with a point": ("chat", chat(max_tokens=100.0)),
    "rollouts": ("completions", {"prompt": [[1, 2, 3], [4]], "n": 64, "logprobs": 1}),
    "an evaluation": (
        "completions",
        {"prompt": ["a", "b"], "max_tokens": 0, "echo": True, "logprobs": 1, "seed": 1234},
    ),
    "all logprobs": ("completions", {"prompt": [5, 6], "logprobs": -1}),
    "embedded prompts": ("completions", {"prompt": None, "prompt_embeds": "aGVsbG8="}),
    "pass@200": ("completions", {"prompt": "def f():", "n": 200, "temperature": 0.8}),
    "tools and their results": (
        "chat",
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "name": "Ann", "content": ["Look", IMAGE]},
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
                {"role": "tool", "tool_call_id": "c", "content": "[]"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
                {"role": "developer", "content": ""},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
        },
    ),
    "OpenAI Agents SDK": (
        "responses",
        {
            "include": [],
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "Hello"},
                {"type": "reasoning", "id": "rs", "summary": [], "content": None},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "[]"},
                {"type": "item_reference", "id": "msg"},
                {
                    "role": "assistant",
                    "type": "message",
                    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
                },
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
            "prompt": {"id": "pmpt_1", "version": "2"},
            "top_logprobs": 0,
            "metadata": None,
        },
    ),
    "texts to be embedded": ("responses", {"input": ["a", "b"], "encoding_format": "base64"}),
    "tokens to be embedded": ("responses", {"input": [[1, 2], [3]], "dimensions": 8}),
    "a chat to be embedded": ("responses", {"messages": HELLO, "input": None}),
    "an unknown role": ("chat", {"messages": [{"role": "critic", "content": "Hm"}]}),
    "no messages": ("chat", {"messages": []}),
    "escaped": ("chat", b'{"messages":[{"r\\u006fle":"user","content":"\\ud83d\\ude00\\u00e9"}]}'),
    "Chinese": ("chat", json.dumps(chat(user="王"), ensure_ascii=False).encode()),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_clients_send_is_read_and_passed_untouched(client):
    route, body = CLIENTS[client]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    assert read_body(content, **ROUTES[route] | {"streams_usage": False}).content == content
    read(content, route)


@pytest.mark.parametrize("shape", [each for each in SHAPES if "makes no sense" not in each])
def test_what_openais_sdk_sends_is_read(shape):
    request = SHAPES[shape]
    path = request.url.path
    route = "chat" if "chat" in path else "completions" if "/completions" in path else "responses"
    read(request.content, route)


def test_each_field_that_is_typed_has_its_words():
    fields = msgspec.structs.fields(bodies._Call)

    assert {each.name for each in fields if each.type is not msgspec.Raw} <= {*RIGHT}


NAMES = st.sampled_from([*WRONG, "prompt", "input", "x"])
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
_keys = st.sampled_from(["role", "content", "type", "text", "x"])
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(NAMES, _values, max_size=5), st.sampled_from([*ROUTES]))
def test_any_body_is_read_or_refused_with_a_field(body, route):
    try:
        read(body, route)
    except InvalidRequest as refused:
        assert refused.param.partition("[")[0].partition(".")[0] in RIGHT  # noqa: PT017


LAX = {
    "a fraction as a text": ('"temperature": "0.7"', {}),
    "a whole number as a text": ('"max_tokens": "20"', {"completion_limit": 20}),
    "a whole number with a point": ('"n": 2.0, "max_tokens": 20', {"completion_limit": 40}),
    "a text with a point": ('"max_tokens": "20.0"', {"completion_limit": 20}),
    "a seed as a text": ('"seed": "7"', {}),
    "stops as texts": ('"stop_token_ids": ["1", 2.0]', {}),
    "true as a text": ('"stream": "true"', {"stream": True}),
    "true as a number": ('"stream": 1', {"stream": True}),
    "logprobs as a text": ('"top_logprobs": "3"', {}),
}


@pytest.mark.parametrize("what", LAX)
def test_numbers_are_taken_as_vllm_takes_them_and_pass_as_they_are(what):
    text, expected = LAX[what]
    content = b'{"messages": [{"role": "user"}], %b}' % text.encode()
    body = read_body(content, chat=True, streams_usage=False)
    assert body.content == content
    assert {name: getattr(body, name) for name in expected} == expected
