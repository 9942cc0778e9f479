"""Flows as models, `flow/NAME`: any client of OpenAI's API can invoke one by chat completion."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from kairos.core import SECOND, InvalidRequest
from kairos.proxy import Asked, Owner, WaitComments
from kairos.request import Caller, ClientResponse
from kairos.workflows.compile.columns import Columns
from kairos.workflows.compile.values import as_text
from kairos.workflows.serve.flow_store import FlowStore
from kairos.workflows.serve.invocation import FlowResult
from kairos.workflows.serve.invoke_body import THREAD_BYTES, check_values, usage_view
from kairos.workflows.serve.invoking import InvocationAsked, Invoking
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
    head = _chat_head("chat.completion", invocation_id, asked, now_s)
    return {**head, "choices": [choice], "usage": usage_view(result.figures)}


class ChatChunks:
    """Chunks of a streamed chat completion."""

    def __init__(self, invocation_id: str, asked: FlowChatAsked, now_s: int) -> None:
        self._head = _chat_head("chat.completion.chunk", invocation_id, asked, now_s)
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


def _chat_head(kind: str, invocation_id: str, asked: FlowChatAsked, now_s: int) -> dict[str, Any]:
    return {"id": invocation_id, "object": kind, "created": now_s, "model": asked.model}


_CHAT = "/v1/chat/completions"
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_DONE = b"data: [DONE]\n\n"


class FlowModels:
    """Flows of all tenants as models; a tenant may call only its own. Implements `OwnModels`."""

    def __init__(self, invoking: Invoking, now: Callable[[], int]) -> None:
        """`now`: µs since the Unix epoch."""
        self._invoking, self._now = invoking, now
        self._chats: set[asyncio.Task[None]] = set()

    def takes(self, model: str) -> bool:
        return model.startswith(MODEL_PREFIX)

    async def names(self, tenant: str) -> list[str]:
        return await model_names(self._invoking.store, tenant)

    def begin(
        self, asked: Asked, content: bytes, caller: Caller, response: ClientResponse, owner: Owner
    ) -> None:
        task = asyncio.create_task(self._answer(asked, content, caller, response))
        self._chats.add(task)
        task.add_done_callback(partial(self._ended, owner))
        response.client.answering = _Leaving(task)
        if response.client.has_left:
            task.cancel()

    async def _answer(
        self, asked: Asked, content: bytes, caller: Caller, response: ClientResponse
    ) -> None:
        """Answer a chat. Raises KairosError: it is refused, or fails."""
        if asked.path != _CHAT:
            raise InvalidRequest(f"a flow is asked as a chat, by POST {_CHAT}", "model")
        read, invoking = partial(read_flow_chat, content), self._invoking
        is_large = len(content) > THREAD_BYTES
        chat = await invoking.beside(caller.tenant, read) if is_large else read()
        wanted = InvocationAsked(
            caller,
            chat.flow,
            asked.headers,
            partial(row_of, chat),
            chat.settings,
            bool(chat.stream),
            is_large=is_large,
        )
        ready = await invoking.ready(wanted)
        now_s = self._now() // SECOND
        if chat.stream:
            stream = ChatStream(response, ChatChunks(ready.id, chat, now_s))
            try:
                result = await invoking.run(ready, lambda _: None, stream.hear)
            finally:
                stream.comments.cancel()
            stream.end(result)
        else:
            result = await invoking.run(ready, lambda _: None)
            body = msgspec.json.encode(completion(ready.id, chat, now_s, result))
            length = (b"content-length", b"%d" % len(body))
            response.start(200, [(b"content-type", b"application/json"), length])
            response.write(body, more=False)

    def _ended(self, owner: Owner, task: asyncio.Task[None]) -> None:
        self._chats.discard(task)
        error = None if task.cancelled() else task.exception()
        owner.ended(error if isinstance(error, Exception) else None)


async def model_names(store: FlowStore, tenant: str) -> list[str]:
    return [MODEL_PREFIX + name for name in await asyncio.to_thread(store.names, tenant)]


class _Leaving:
    """Cancels the chat when its client disconnects. Implements `Answering`."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def client_left(self) -> None:
        self._task.cancel()

    def client_drained(self) -> None:
        """Do nothing: answers are written without waiting for the client."""


class ChatStream:
    """Streamed answer; keep-alive comments until its first text."""

    def __init__(self, response: ClientResponse, chunks: ChatChunks) -> None:
        self._response, self._chunks = response, chunks
        self.comments = WaitComments(response)
        self._heard = 0  # characters

    def hear(self, text: str) -> None:
        """Write more of the answer."""
        self._begin()
        self._heard += len(text)
        self._write(self._chunks.text(text))

    def end(self, result: FlowResult) -> None:
        self._begin()
        rest = answer_text(result)[self._heard :]
        if rest:
            self._write(self._chunks.text(rest))
        for each in self._chunks.last(result):
            self._write(each)
        self._response.write(_DONE, more=False)

    def _begin(self) -> None:
        if not self._response.started:
            self.comments.cancel()
            self._response.start(200, [_STREAM])
            self._response.streams = True  # so that a later error is sent as an event
            self._write(self._chunks.first())

    def _write(self, chunk: dict[str, Any]) -> None:
        self._response.write(b"data: %b\n\n" % msgspec.json.encode(chunk), more=True)
