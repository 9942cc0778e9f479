"""Token counts of prompts by their model's own tokenizer, in a thread.

A tokenizer takes 0.3 µs a byte: 10 ms for a prompt of 32 KiB, which must not delay other calls. So
one thread counts, and caches the counts of texts, since conversations repeat theirs with each call.
A call waits at most `WAIT_S` for its count, and continues without it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from kairos.core import SetupError
from kairos.request.identity.conversation import decode_foreign

WAIT_S = 0.05
BODY_LIMIT_BYTES = 1 << 20  # a larger one is not counted
TEXT_LIMIT = 1 << 18  # characters of a prompt; the rest is taken to be like these
TEXTS_KEPT = 20_000  # lengths of texts, of each model
# What a chat template puts around a message, and after the last: <|im_start|>role\n...<|im_end|>\n
_MESSAGE_TOKENS = 5
_LAST_TOKENS = 3
_JOINED = 0.95  # of the tokens of texts that are counted apart are there when they are joined


class PromptCount(NamedTuple):
    """A tokenizer's count of a prompt.

    `least`: tokens of its texts alone; 0 if not all were counted, or an engine may leave some out.
    """

    tokens: int
    least: int


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    arguments: str = ""  # of a tool's call, in the Responses API
    output: str | list[_Part] = ""


class _Prompt(msgspec.Struct):
    tools: msgspec.Raw = msgspec.Raw()
    instructions: str | None = None
    messages: list[_Message] | None = None
    prompt: str | list[str] | None = None
    input: str | list[str | _Message] | None = None
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw()
    truncation: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Prompt)


class Tokenizers:
    """Tokenizers by model. `close` them when no call is left."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Load the tokenizers. `paths` has each model's `tokenizer.json`.

        Raises:
            SetupError: One cannot be used, or the package `tokenizers` is missing.
        """
        self._tokenizers = {model: _Tokenizer(model, path) for model, path in paths.items()}
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    def knows(self, model: str | None) -> bool:
        return (model or "") in self._tokenizers

    async def count(self, model: str | None, body: bytes) -> PromptCount | None:
        """Return the tokens of a body's prompt; None if they were not counted."""
        tokenizer = self._tokenizers.get(model or "")
        if tokenizer is None or len(body) > BODY_LIMIT_BYTES:
            return None
        counting = asyncio.get_running_loop().run_in_executor(self._thread, tokenizer.count, body)
        try:
            async with asyncio.timeout(WAIT_S):
                return await counting
        except TimeoutError:
            return None

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


class _Tokenizer:
    """Tokenizer of one model; used by one thread."""

    def __init__(self, model: str, path: str) -> None:
        self._tokenizer = _load(model, path)
        self._lengths: OrderedDict[bytes, int] = OrderedDict()

    def count(self, body: bytes) -> PromptCount | None:
        prompt: _Prompt | None = decode_foreign(_decoder, body)
        if prompt is None:  # the engine judges it, and may know shapes that we do not
            return None
        tokens, characters, left = 0, 0, 0
        for text in filter(None, _texts(prompt)):
            whole = text[: TEXT_LIMIT - characters]
            tokens += self._length(whole)
            characters += len(whole)
            left += len(text) - len(whole)
        # Joined, texts may have fewer tokens; several prompts are apart from each other; tools are
        # written by a template's own rules; and an engine may be asked to leave out a part.
        may_be_fewer = left or prompt.truncate_prompt_tokens or prompt.truncation or prompt.tools
        least = 0 if may_be_fewer or _has_several(prompt) else int(_JOINED * tokens)
        if left:
            tokens += left * tokens // characters
        return PromptCount(max(1, tokens + _template_tokens(prompt)), least)

    def _length(self, text: str) -> int:
        key = blake2b(text.encode(), digest_size=16).digest()
        length = self._lengths.get(key)
        if length is None:
            # Of the library's methods those for a batch alone let other threads run meanwhile.
            [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            length = len(encoded)
            self._lengths[key] = length
            if len(self._lengths) > TEXTS_KEPT:
                self._lengths.popitem(last=False)
        else:
            self._lengths.move_to_end(key)
        return length


def _load(model: str, path: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise SetupError(
            f"the tokenizer of '{model}' needs the package 'tokenizers': pip install "
            "tokenizers, or leave the tokenizer out; prompts are then estimated"
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise SetupError(f"cannot use the tokenizer of '{model}', {path}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _texts(prompt: _Prompt) -> Iterator[str]:
    yield bytes(prompt.tools).decode(errors="replace")
    yield prompt.instructions or ""
    for each in _messages(prompt):
        if isinstance(each, str):
            yield each
            continue
        yield from _parts(each.content)
        yield each.reasoning or ""
        yield bytes(each.tool_calls).decode(errors="replace")
        yield each.arguments
        yield from _parts(each.output)


def _messages(prompt: _Prompt) -> Iterator[str | _Message]:
    for given in (prompt.messages, prompt.prompt, prompt.input):
        if given:
            yield from [given] if isinstance(given, str) else given


def _parts(content: str | list[_Part] | None) -> Iterator[str]:
    if isinstance(content, list):
        yield from (part.text for part in content)
    else:
        yield content or ""


def _has_several(prompt: _Prompt) -> bool:
    given = prompt.prompt or prompt.input
    return isinstance(given, list) and isinstance(given[0], str)


def _template_tokens(prompt: _Prompt) -> int:
    messages = sum(isinstance(each, _Message) for each in _messages(prompt))
    return messages * _MESSAGE_TOKENS + _LAST_TOKENS if messages else 0
