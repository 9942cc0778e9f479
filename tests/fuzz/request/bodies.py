"""The body of a request, fuzzed."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kairos.core import InvalidRequest
from kairos.request import Body, read_body
from kairos.request.identity.conversation import conversation, prompt_of
from kairos.request.native import READING, Reading
from kairos.request.shape import check_input, check_messages, check_prompt, check_tools


def body(data: bytes) -> None:
    """A request's body, on each kind of route."""
    for chat, streams_usage in ((True, True), (False, True), (False, False)):
        with suppress(InvalidRequest):
            read = read_body(data, chat=chat, streams_usage=streams_usage)
            _check_engine_can_read(data)
            assert read.prompt_tokens >= 1
            assert read.completion_tokens >= 1
            assert read.usage_added or read.content is data
            again = read_body(read.content, chat=chat, streams_usage=streams_usage)
            assert not again.usage_added, "it asks for usage now"
            assert _routing(again) == _routing(read)
    talk = conversation(prompt_of(data))
    if talk is not None:
        "".join(map(talk.text_at, talk.parts().values())).encode("utf-8", "replace")
        assert all(each.at < max(1, len(talk.raw)) for each in talk.tail())


def _routing(read: Body) -> tuple[object, ...]:
    return read.model, read.stream, read.prefix, read.prefix_units, read.told


def _check_engine_can_read(content: bytes) -> None:
    """Any engine: it is JSON, in text that has UTF-8."""
    read = json.loads(content.decode(), parse_int=str)
    assert isinstance(read, dict)
    json.dumps(read, ensure_ascii=False).encode()
    prompt = prompt_of(content)
    for check, part in (
        (check_messages, prompt.messages),
        (check_tools, prompt.tools),
        (check_input, prompt.input),
        (partial(check_prompt, choices=1), prompt.prompt),
    ):
        if part:
            sure, judged = (_refusal(check, bytes(part), c) for c in (READING, None))
            assert sure == judged, "C is sure of what msgspec is not"


def _refusal(check: Callable[..., None], part: bytes, compiled: Reading | None) -> str | None:
    try:
        check(part, compiled=compiled)
    except InvalidRequest as refused:
        return str(refused)
    return None
