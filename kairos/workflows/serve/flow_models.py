"""Flows as models, `flow/NAME`: any client of OpenAI's API can invoke one by chat completion."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from kairos.core import SECOND, InvalidRequest
from kairos.proxy import Asked, Owner, WaitComments
from kairos.request import Caller, ClientResponse
from kairos.workflows.serve.chat_body import (
    ChatChunks,
    answer_text,
    completion,
    read_flow_chat,
    row_of,
)
from kairos.workflows.serve.flow_store import FlowStore
from kairos.workflows.serve.invocation import FlowResult
from kairos.workflows.serve.invoke_body import THREAD_BYTES
from kairos.workflows.serve.invoking import InvocationAsked, Invoking
from kairos.workflows.serve.records import MODEL_PREFIX

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
        chat = FlowChat(self._invoking, asked, caller, response, self._now)
        task = asyncio.create_task(chat.answer(content))
        self._chats.add(task)
        task.add_done_callback(partial(self._ended, owner))
        response.client.answering = _Leaving(task)
        if response.client.has_left:
            task.cancel()

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


class FlowChat:
    """Chat completion with a flow."""

    def __init__(
        self,
        invoking: Invoking,
        asked: Asked,
        caller: Caller,
        response: ClientResponse,
        now: Callable[[], int],
    ) -> None:
        self._invoking, self._asked, self._caller = invoking, asked, caller
        self._response, self._now = response, now

    async def answer(self, content: bytes) -> None:
        """Answer the chat. Raises KairosError: it is refused, or fails."""
        if self._asked.path != _CHAT:
            raise InvalidRequest(f"a flow is asked as a chat, by POST {_CHAT}", "model")
        read = partial(read_flow_chat, content)
        is_large = len(content) > THREAD_BYTES
        beside = self._invoking.beside
        chat = await beside(self._caller.tenant, read) if is_large else read()
        wanted = InvocationAsked(
            self._caller,
            chat.flow,
            self._asked.headers,
            partial(row_of, chat),
            chat.settings,
            bool(chat.stream),
            is_large=is_large,
        )
        ready = await self._invoking.ready(wanted)
        now_s = self._now() // SECOND
        if chat.stream:
            stream = ChatStream(self._response, ChatChunks(ready.id, chat, now_s))
            try:
                result = await self._invoking.run(ready, lambda _: None, stream.hear)
            finally:
                stream.comments.cancel()
            stream.end(result)
        else:
            result = await self._invoking.run(ready, lambda _: None)
            self._whole(msgspec.json.encode(completion(ready.id, chat, now_s, result)))

    def _whole(self, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        self._response.start(200, [(b"content-type", b"application/json"), length])
        self._response.write(body, more=False)


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
