"""Prompts are counted by a tokenizer of a model's own, beside the event loop."""

import asyncio
import json
import os
import threading
from contextlib import closing

import pytest

from kairos.core import SetupError
from kairos.request import Tokenizers
from kairos.request import tokenizer as module

if "CI" in os.environ:
    import tokenizers as library
else:
    library = pytest.importorskip("tokenizers", reason="the extra 'tokenizer' is not installed")

MESSAGE, LAST = 5, 3  # tokens of the template


@pytest.fixture
def path(tmp_path):
    """Of a tokenizer to which each word is a token, and each sign between words."""
    made = library.Tokenizer(library.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.enable_truncation(4)  # of which a count must take no notice
    made.enable_padding(length=50)
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.fixture
def tokenizers(path):
    with closing(Tokenizers({"m": path})) as made:
        yield made


async def count(tokenizers, model="m", **body):
    counted = await tokenizers.count(model, json.dumps(body).encode())
    assert counted is None or counted.least <= counted.tokens
    return None if counted is None else counted.tokens


async def least(tokenizers, **body):
    return (await tokenizers.count("m", json.dumps(body).encode())).least


async def test_what_is_certain_is_what_no_engine_leaves_out(tokenizers):
    words = "one two three four " * 30
    assert await least(tokenizers, prompt=words) == 114
    assert await least(tokenizers, messages=[{"role": "user", "content": words}]) == 114
    assert await least(tokenizers, prompt=[words, words]) == 0
    assert await least(tokenizers, prompt=words, truncate_prompt_tokens=10) == 0
    assert await least(tokenizers, input=words, truncation="auto") == 0
    assert await least(tokenizers, prompt=words, tools=[{"type": "function"}]) == 0


async def test_a_chats_messages_are_counted_with_what_is_around_each(tokenizers):
    messages = [
        {"role": "system", "content": "one two three four five six"},
        {"role": "user", "content": [{"type": "text", "text": "seven"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None},
    ]

    assert await count(tokenizers, messages=messages) == 7 + 3 * MESSAGE + LAST


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "one two three four five"}, 5),
        ({"prompt": ["one two", "three"]}, 3),
        ({"input": "one two"}, 2),
        ({"input": ["one two", "three"]}, 3),
        ({"input": "one two", "instructions": "three four"}, 4),
        ({"input": [{"role": "user", "content": "one two"}]}, 2 + MESSAGE + LAST),
        ({"input": [{"type": "function_call", "arguments": "one"}]}, 1 + MESSAGE + LAST),
        ({"input": [{"type": "function_call_output", "output": "one"}]}, 1 + MESSAGE + LAST),
        ({"messages": [{"role": "assistant", "reasoning": "one two"}]}, 2 + MESSAGE + LAST),
        ({"prompt": ""}, 1),
        ({}, 1),
    ],
)
async def test_whatever_is_asked_with_is_counted(tokenizers, body, tokens):
    assert await count(tokenizers, **body) == tokens


async def test_tools_and_their_calls_count_as_they_are_written(tokenizers):
    tools = [{"name": "look_up", "parameters": {}}]
    calls = [{"function": {"name": "look_up", "arguments": "{}"}}]
    message = {"role": "assistant", "tool_calls": calls}
    whole = f"{json.dumps(tools)} {json.dumps(calls)}"
    words = await count(tokenizers, prompt=whole)

    assert words > 20
    assert await count(tokenizers, tools=tools, messages=[message]) == words + MESSAGE + LAST


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"content":5}]}',
        b'{"messages":["hello"]}',
        b'{"prompt":[1,2]}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"messages":' + b"[" * 100_000,
        b"",
        b"5",
    ],
    ids=range(8),
)
async def test_what_has_another_shape_is_not_counted(tokenizers, body):
    assert await tokenizers.count("m", body) is None


async def test_what_is_no_text_is_the_engines_to_refuse(tokenizers):
    tools = b'{"tools":["\xff"],"messages":[{"tool_calls":["\xff"]}]}'

    assert (await tokenizers.count("m", tools)).tokens > MESSAGE + LAST


async def test_of_models_without_a_tokenizer_nothing_is_counted(tokenizers):
    assert await count(tokenizers, "n", prompt="one") is None
    assert await count(tokenizers, None, prompt="one") is None
    with closing(Tokenizers({})) as none:
        assert await count(none, prompt="one") is None


async def test_a_prompt_beyond_the_limit_is_taken_to_go_on_as_it_began(tokenizers, monkeypatch):
    monkeypatch.setattr(module, "TEXT_LIMIT", 100)

    assert await count(tokenizers, prompt="a " * 200) == 200
    assert await count(tokenizers, prompt=["b " * 25, "b " * 100, "b " * 100]) == 225


async def test_a_body_beyond_the_limit_is_not_counted(tokenizers, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 10)
    assert await count(tokenizers, prompt="x" * (module.BODY_LIMIT_BYTES - 20)) is not None
    assert await count(tokenizers, prompt="x" * module.BODY_LIMIT_BYTES) is None


async def test_a_text_that_was_counted_before_is_not_counted_again(tokenizers, monkeypatch):
    texts = [f"text {number}" for number in range(5)]
    [tokenizer] = tokenizers._tokenizers.values()
    counted = Counted(tokenizer)
    for number in range(1, 6):
        assert await count(tokenizers, prompt=texts[:number]) == 2 * number
    assert counted.texts == texts

    monkeypatch.setattr(module, "TEXTS_KEPT", 5)
    await count(tokenizers, prompt=["text 0", "another"])  # the second is forgotten
    await count(tokenizers, prompt=["text 0", "text 1", "another"])
    assert counted.texts == [*texts, "another", "text 1"]
    assert len(tokenizer._lengths) == 5


class Counted:
    """What a tokenizer is given from now on; and it waits for `may_go`."""

    def __init__(self, tokenizer):
        self.texts, self.may_go, self._real = [], threading.Event(), tokenizer._tokenizer
        self.may_go.set()
        tokenizer._tokenizer = self

    def encode_batch_fast(self, texts, **options):
        self.texts += texts
        assert self.may_go.wait(60)
        return self._real.encode_batch_fast(texts, **options)


async def test_a_call_does_not_wait_for_a_count_that_takes_too_long(tokenizers):
    [tokenizer] = tokenizers._tokenizers.values()
    counted = Counted(tokenizer)
    counted.may_go.clear()
    slow = await count(tokenizers, prompt="one two")
    behind = await count(tokenizers, prompt="three")
    counted.may_go.set()

    assert (slow, behind) == (None, None)
    async with asyncio.timeout(60):
        while await count(tokenizers, prompt="one two") != 2:
            pass
    assert counted.texts == ["one two"]  # it was counted after all, what was behind it was not


def test_a_tokenizer_that_cannot_be_used_is_said_at_the_start(tmp_path, path):
    with pytest.raises(SetupError, match="cannot use the tokenizer of 'm', /nowhere: "):
        Tokenizers({"m": "/nowhere"})
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(SetupError, match="broken"):
        Tokenizers({"n": path, "m": str(tmp_path / "broken.json")})


def test_without_the_package_it_is_said_what_to_do(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(SetupError, match=r"pip install tokenizers"):
        Tokenizers({"m": path})
