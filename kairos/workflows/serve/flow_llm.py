"""LLM calls of an invocation, sent through this process's own gateway.

The gateway treats each like a client's call; it belongs to the invocation's workflow.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from kairos.core import RAW_HEADERS, Header, InvalidRequest, KairosError, UpstreamFailed
from kairos.gateway import ANSWER_BYTES, InnerAnswer, InnerCall, InnerGateway
from kairos.proxy import Hear, Listen, read_error, read_stream, refusal_error
from kairos.workflows.execute.commands import TOUCH_AGENT

_CHAT = "/v1/chat/completions"
_BUDGETS = {
    RAW_HEADERS[Header.BUDGET_CALLS],
    RAW_HEADERS[Header.BUDGET_TOKENS],
    RAW_HEADERS[Header.BUDGET_MS],
}


class FlowLLM:
    """Answers the chat completions of `RunCalls`."""

    def __init__(
        self,
        gateway: InnerGateway,
        name: str,
        workflow_id: str,
        headers: Mapping[bytes, bytes],
        model: str | None,
        heard: Mapping[str, Hear],
    ) -> None:
        """Make the calls of one invocation.

        `name`: the invocation, by which the gateway knows its caller. `headers`: sent with each
        call. `model`: for calls that name none. `heard`: by operator, a function that receives its
        answer as it streams.
        """
        self._gateway, self._name, self._workflow_id = gateway, name, workflow_id
        self._model = {} if model is None else {"model": model}
        self._headers, self._heard = headers, heard
        self._failure: KairosError | None = None  # of the last call that failed

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Return a chat completion. Raises KairosError: the status was not 200."""
        hear = self._heard.get(headers.get(Header.AGENT, ""))
        if hear is not None:
            return await self._said_aloud(body, headers, hear)
        try:
            return _completion(await self._asked({**self._model, **body}, headers, None))
        except KairosError as error:
            self._failure = error
            raise

    async def complete_streamed(
        self, body: dict[str, Any], headers: Mapping[str, str], listen: Listen
    ) -> dict[str, Any]:
        """Like `complete`, with the text passed to `listen` as it arrives. Raises KairosError."""
        asked = {**self._model, **body, "stream": True, "stream_options": {"include_usage": True}}
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        reading = asyncio.create_task(read_stream(_until_end(pieces), listen(), ANSWER_BYTES))
        try:
            answer = await self._asked(asked, headers, pieces.put_nowait)
            if answer.body.startswith(b"{"):  # the engine streams nothing
                return _completion(answer)
            pieces.put_nowait(None)
            return await reading
        except KairosError as error:
            self._failure = error
            raise
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _said_aloud(
        self, body: dict[str, Any], headers: Mapping[str, str], hear: Hear
    ) -> dict[str, Any]:
        """Stream an answer to `hear`.

        Raises:
            InvalidRequest: it failed after some text was passed on, which a retry would repeat.
            KairosError: it failed before that.
        """
        has_begun = False

        def told(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            hear(text)

        try:
            return await self.complete_streamed(body, headers, lambda: told)
        except KairosError as error:
            if has_begun:
                self._failure = _as_answered(InvalidRequest(str(error)), error)
                raise self._failure from None
            raise

    def why_failed(self, node: str, error: str) -> KairosError | None:
        """Return the failed call's error for the client; None: the operator failed otherwise."""
        failure = self._failure
        if failure is None or str(failure) != error:
            return None
        return _as_answered(type(failure)(f"operator '{node}': {error}"), failure)

    async def _asked(
        self,
        body: dict[str, Any],
        headers: Mapping[str, str],
        on_piece: Callable[[bytes], None] | None,
    ) -> InnerAnswer:
        """Send a call through the gateway. Raises KairosError: the status was not 200."""
        answered: asyncio.Future[InnerAnswer] = asyncio.get_running_loop().create_future()

        def on_end(_: InnerCall, answer: InnerAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        own = dict(headers)
        request_id, attempt = own.pop(Header.REQUEST_ID), int(own.pop(Header.ATTEMPT, "1"))
        service_class = own.pop(Header.CLASS)
        is_touch = own[Header.AGENT] == TOUCH_AGENT  # no part of the workflow, or of its budget
        if is_touch:
            del own[Header.WORKFLOW_ID]
        else:
            own[Header.WORKFLOW_ID] = self._workflow_id
        said = {name.lower().encode(): value.encode() for name, value in own.items()}
        told = self._headers.items()
        said |= {name: each for name, each in told if not is_touch or name not in _BUDGETS}
        call = InnerCall(
            *(self._name, request_id, attempt, _CHAT, service_class, said.items()),
            msgspec.json.encode(body),
            on_end=on_end,
            on_piece=on_piece,
        )
        self._gateway.start_call(call)
        try:
            answer = await answered
        except asyncio.CancelledError:
            call.leave()
            raise
        if answer.status != 200:
            raise _failure(answer)
        return answer


async def _until_end(pieces: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (piece := await pieces.get()) is not None:
        yield piece


def _completion(answer: InnerAnswer) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed(f"the answer is not a JSON object: {error}") from error


def _failure(answer: InnerAnswer) -> KairosError:
    """Return the error of a refused call; a broken connection counts as an engine's failure."""
    status = answer.status
    if status is None:
        return UpstreamFailed("the answer broke off")
    failure = refusal_error(status, read_error(answer.body))
    failure.retry_after_s = answer.retry_after_s
    return failure


def _as_answered(told: KairosError, failure: KairosError) -> KairosError:
    """Return `told` with the status, the code and the retry time of `failure`."""
    told.status, told.code = failure.status, failure.code
    told.retry_after_s = failure.retry_after_s
    return told
