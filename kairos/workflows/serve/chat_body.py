"""Chat completions with a flow as the model: read the request, and word the answer."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from kairos.core import InvalidRequest
from kairos.workflows.compile.columns import Columns
from kairos.workflows.compile.values import as_text
from kairos.workflows.serve.invocation import FlowResult
from kairos.workflows.serve.invoke_body import check_values, usage_view
from kairos.workflows.serve.records import MODEL_PREFIX

MESSAGES, TEXT = "messages", "text"  # columns that every chat fills

_Message = dict[str, Any]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class FlowChatAsked(msgspec.Struct, frozen=True):
    """Fields read from a chat completion's body.

    `inputs` and `settings` mean the same as in an invocation. Other chat fields have no effect.
    """

    model: str
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    inputs: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None

    @property
    def flow(self) -> str:
        return self.model.removeprefix(MODEL_PREFIX)

    @property
    def tells_usage(self) -> bool:
        """Return whether the stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def read_flow_chat(body: bytes) -> FlowChatAsked:
    """Raises InvalidRequest."""
    check_values(body, "messages")
    try:
        asked = msgspec.json.decode(body, type=FlowChatAsked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a chat with a flow: {error}") from None
    if (asked.n or 1) != 1:
        raise InvalidRequest("a flow gives one answer: leave out n", "n")
    return asked


def row_of(asked: FlowChatAsked, table: Columns) -> Mapping[str, object]:
    """Make the row of a chat, for a flow that needs these columns.

    `messages` has all messages; the one other column, or `text`, has the user's last message.
    Values in `inputs` override both.

    Raises:
        InvalidRequest: the flow needs several other columns, or the user has said nothing.
    """
    needed = table.required
    rest = [each for each in needed if each != MESSAGES and each not in asked.inputs]
    if len(rest) > 1:
        names = ", ".join(f"'{each[:64]}'" for each in rest[:20])
        raise InvalidRequest(
            f"the flow needs the columns {names}: send them as `inputs`, next to the messages",
            "inputs",
        )
    row: dict[str, object] = {MESSAGES: asked.messages}
    if rest or not needed:
        row[rest[0] if rest else TEXT] = _last_text(asked.messages)
    return row | asked.inputs


def _last_text(messages: list[_Message]) -> str:
    """Return the text of the user's last message. Raises InvalidRequest."""
    said = next((each for each in reversed(messages) if each.get("role") == "user"), None)
    if said is None:
        raise InvalidRequest("no message has the role user", MESSAGES)
    content = said.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("the user's last message is not a text", MESSAGES)
    return "\n".join(map(str, texts))


def answer_text(result: FlowResult) -> str:
    """Return the answer's text: the one output column as text, or several as JSON.

    It is empty if the row was filtered out.
    """
    outputs = result.outputs or {}
    if len(outputs) == 1:
        return as_text(next(iter(outputs.values())))
    return as_text(outputs) if outputs else ""


def completion(invocation_id: str, asked: FlowChatAsked, now_s: int, result: FlowResult) -> Any:
    message = {"role": "assistant", "content": answer_text(result), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None}
    choice["finish_reason"] = result.finish_reason
    head = _head("chat.completion", invocation_id, asked, now_s)
    return {**head, "choices": [choice], "usage": usage_view(result.figures)}


class ChatChunks:
    """Chunks of a streamed chat completion."""

    def __init__(self, invocation_id: str, asked: FlowChatAsked, now_s: int) -> None:
        self._head = _head("chat.completion.chunk", invocation_id, asked, now_s)
        self._tells_usage = asked.tells_usage
        if self._tells_usage:
            self._head["usage"] = None

    def first(self) -> dict[str, Any]:
        return self._part({"role": "assistant", "content": ""})

    def text(self, text: str) -> dict[str, Any]:
        return self._part({"content": text})

    def last(self, result: FlowResult) -> list[dict[str, Any]]:
        end = self._part({}, result.finish_reason)
        if not self._tells_usage:
            return [end]
        return [end, {**self._head, "choices": [], "usage": usage_view(result.figures)}]

    def _part(self, delta: Mapping[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "choices": [choice]}


def _head(kind: str, invocation_id: str, asked: FlowChatAsked, now_s: int) -> dict[str, Any]:
    return {"id": invocation_id, "object": kind, "created": now_s, "model": asked.model}
