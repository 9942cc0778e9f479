"""Requirements on parameters of a call, for any engine, and the errors for wrong ones.

Only what every engine and OpenAI's API agree on is checked, and what crashes present engines;
parameters that are not listed here pass unchanged. The limits exceed what present clients use, and
reject calls that could harm an engine. Not in the paper.
"""

import re
from typing import Annotated

import msgspec

from kairos.core import InvalidRequest

# Of an answer. No context is near it; with it, clients whose integers have 32 bits set no limit.
MAX_TOKENS = 2**31 - 1
# llama.cpp takes -1 for no limit, and vLLM for every logprob that there is.
NO_LIMIT = -1
# Answers to one prompt: OpenAI has 128, and measures of code models ask for 200.
MAX_CHOICES = 1_024
# Answers of one call, to all its prompts: the engine has a sequence for each. vLLM's own limit of
# `n`; of prompts it takes 1,024 unless told otherwise, and before 2026 any number (CVE-2026-73559).
MAX_SEQUENCES = 16_384
# Of a token: no vocabulary is larger. OpenAI has 20, vLLM what its operator says.
MAX_LOGPROBS = 1 << 20
# OpenAI has 4, vLLM, too, unless told otherwise. Each is searched for after each token.
MAX_STOPS = 256
# Tokens that end an answer: a model has a few. Of more vLLM dies (pull request 55164).
MAX_STOP_TOKENS = 128
# Of more vLLM dies (the same).
MAX_BIASES = 1_024
# Conversations of today have some thousands. Templates go through all of them, some for each.
MAX_MESSAGES = 16_384
# Of all messages: images, sounds, texts. vLLM takes 999 images, OpenAI 500.
MAX_PARTS, MAX_MEDIA = 16_384, 2_048
# OpenAI has 128; those who pass on what several MCP servers offer have hundreds.
MAX_TOOLS = 2_048
# Lists and objects within each other: the limit of serde_json. Schemas of tools have below 30.
MAX_DEPTH = 128

_Tokens = Annotated[int, msgspec.Meta(ge=NO_LIMIT, le=MAX_TOKENS)]
# 100.0 is fine with vLLM.
_TokensInFull = Annotated[float, msgspec.Meta(ge=NO_LIMIT, le=MAX_TOKENS, multiple_of=1)]
Tokens = _Tokens | _TokensInFull | None
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None
Logprobs = Annotated[int, msgspec.Meta(ge=NO_LIMIT, le=MAX_LOGPROBS)] | None
Stop = str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOPS)] | None
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
# Negative ones have killed vLLM (pull requests 36947, 54196). How many there are, the engine knows.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
StopTokens = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKENS)] | None
AllowedTokens = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_LOGPROBS)] | None
_AtMost = msgspec.Meta(max_length=MAX_BIASES)
# llama.cpp takes pairs, too, and `false`.
Biases = Annotated[dict[str, msgspec.Raw], _AtMost] | Annotated[list[msgspec.Raw], _AtMost] | None
# Of the lists above, counted before they are decoded.
MOST_ITEMS = {
    "stop": MAX_STOPS,
    "stop_token_ids": MAX_STOP_TOKENS,
    "allowed_token_ids": MAX_LOGPROBS,
    "logit_bias": MAX_BIASES,
}

_LIMIT = f"a whole number up to {MAX_TOKENS}, or null"
_CHOICES = f"a whole number from 1 to {MAX_CHOICES}, or null"
_NUMBER = "a finite number, or null"
_CONTENT = "a string, a list of parts, or null"
_PART = "a string, or an object"
RIGHT = {
    "model": "a string, or null",
    "stream": "true, false or null",
    "stream_options": "an object, or null",
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "max_output_tokens": _LIMIT,
    "n": _CHOICES,
    "best_of": _CHOICES,
    "logprobs": f"true, false, a whole number from -1 to {MAX_LOGPROBS}, or null",
    "top_logprobs": f"a whole number from -1 to {MAX_LOGPROBS}, or null",
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": "a whole number of 64 bits, or null",
    "stop": f"a string, a list of at most {MAX_STOPS} strings, or null",
    "stop[]": "a string",
    "stop_token_ids": f"a list of at most {MAX_STOP_TOKENS} token ids, or null",
    "stop_token_ids[]": "a token id",
    "allowed_token_ids": f"a list of at most {MAX_LOGPROBS} token ids, or null",
    "allowed_token_ids[]": "a token id",
    "logit_bias": f"an object of at most {MAX_BIASES} token ids, or null",
    "messages": f"a list of at most {MAX_MESSAGES} objects",
    "messages[]": "an object",
    "messages[].role": "a string",
    "messages[].content": _CONTENT,
    "messages[].content[]": _PART,
    "tools": f"a list of at most {MAX_TOOLS} objects, or null",
    "tools[]": "an object",
    "prompt": f"a string, or a list of at most {MAX_SEQUENCES} strings or lists of token ids",
    "prompt[]": "a string, a token id, or a list of token ids",
    "prompt[][]": "a token id",
    "input": f"a string, or a list of at most {MAX_MESSAGES} strings, objects or token ids",
    "input[]": "a string, an object, a token id, or a list of token ids",
    "input[][]": "a token id",
    "input[].role": "a string, or null",
    "input[].content": _CONTENT,
    "input[].content[]": _PART,
}
A_NUMBER = "a number"
_WAS = {
    "str": "a string",
    "int": A_NUMBER,
    "float": "a number with a fraction",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_BEGINNINGS = {'"': "str", "[": "array", "{": "object", "t": "bool", "f": "bool", "n": "null"}
OUTSIDE = "a number that is too large or too small"
TOO_LONG = "longer"
_DIGITS = b"-0123456789"
_NUMBER_TEXT = re.compile(rb"[-+.0-9eE]+")
_AT = re.compile(r" - at `\$(.*)`\Z")
_GOT = re.compile(r", got `(\w+)`")
_MISSING = re.compile(r"missing required field `(\w+)`")
_PLACES = re.compile(r"\[[^\]]*\]")


def wrong(param: str, was: str) -> InvalidRequest:
    """Return the error for a wrong field. Its content is not quoted: it is the client's."""
    right = RIGHT.get(_PLACES.sub("[]", param), "something else")
    return InvalidRequest(f"'{param}' must be {right}; it is {was}", param)


def beginning(value: bytes) -> str:
    """Return the kind of a value by its beginning; for a number, all of it is read."""
    kind = _BEGINNINGS.get(value[:1].decode("latin-1"), "int")
    if kind == "int" and (number := _NUMBER_TEXT.match(value)) and number[0].strip(_DIGITS):
        kind = "float"
    return _WAS[kind]


def told(error: msgspec.ValidationError, within: str = "") -> InvalidRequest:
    """Return msgspec's error as OpenAI's API would word it. `within`: the field that was read."""
    text = str(error)
    got, at = _GOT.search(text), _AT.search(text)
    path = "" if at is None else at[1]
    param = within + path if within else path.removeprefix(".")
    if not param:
        was = _WAS[got[1]] if got else "something else"
        return InvalidRequest(f"the body cannot be read: it must be an object, but is {was}")
    if missing := _MISSING.search(text):
        return wrong(f"{param}.{missing[1]}", "missing")
    if got is not None:
        return wrong(param, _WAS[got[1]])
    return wrong(param, TOO_LONG if "length" in text else OUTSIDE)
