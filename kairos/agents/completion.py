"""The text of a model's answer."""

from typing import Annotated

import msgspec

from kairos.cluster import Value
from kairos.core import UpstreamFailed


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Said


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


def reply_text(response: Value) -> str:
    try:
        completion = msgspec.convert(response, _Completion)
    except msgspec.ValidationError as error:
        raise UpstreamFailed(f"the model's answer is not a chat completion: {error}") from error
    return completion.choices[0].message.content or ""
