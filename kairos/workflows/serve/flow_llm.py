"""The calls of an invocation: each goes through the gateway of this process, as any client's would,
and counts as one of the invocation's workflow."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from kairos.core.errors import InvalidRequest, KairosError, UpstreamFailed
from kairos.core.header_names import (
    AGENT,
    ATTEMPT,
    BUDGET_CALLS,
    BUDGET_MS,
    BUDGET_TOKENS,
    CLASS,
    RAW,
    REQUEST_ID,
    WORKFLOW_ID,
)
from kairos.gateway.api.inner_call import ANSWER_BYTES, InnerAnswer, InnerCall, InnerGateway
from kairos.proxy.llm.refusals import read_error, refusal
from kairos.proxy.llm.streamed_chat import Hear, Listen, read_stream
from kairos.workflows.execute.commands import TOUCH

_CHAT = "/v1/chat/completions"
_BUDGETS = {RAW[BUDGET_CALLS], RAW[BUDGET_TOKENS], RAW[BUDGET_MS]}


class FlowLLM:
    """Answers chat completions, as `RunCalls` asks them."""

    def __init__(
        self,
        gateway: InnerGateway,
        name: str,
        workflow_id: str,
        headers: Mapping[bytes, bytes],
        model: str | None,
        heard: Mapping[str, Hear],
    ) -> None:
        """`name`: of the invocation, by which the gateway knows its caller. `headers`: what its
        client said of all of its calls. `model`: of those that name none. `heard`: by operator, who
        is told its answer as it comes."""
        self._gateway, self._name, self._workflow_id = gateway, name, workflow_id
        self._model = {} if model is None else {"model": model}
        self._headers, self._heard = headers, heard
        self._failure: KairosError | None = None  # of the last call that failed

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Raises KairosError: as the call was answered, which was not with 200."""
        hear = self._heard.get(headers.get(AGENT, ""))
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
        """The same; the text is told as it comes. Raises KairosError."""
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
        """Raises KairosError; InvalidRequest, where something was heard, which another attempt
        would say again."""
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
        """What the failure of an operator is to its client, where it is that of a call."""
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
        """Raises KairosError: it was not answered with 200."""
        answered: asyncio.Future[InnerAnswer] = asyncio.get_running_loop().create_future()

        def on_end(_: InnerCall, answer: InnerAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        own = dict(headers)
        request_id, attempt = own.pop(REQUEST_ID), int(own.pop(ATTEMPT, "1"))
        service_class = own.pop(CLASS)
        if own[AGENT] == TOUCH:  # what nobody asked is no part of the workflow, or of its budget
            del own[WORKFLOW_ID]
        else:
            own[WORKFLOW_ID] = self._workflow_id
        said = {name.lower().encode(): value.encode() for name, value in own.items()}
        told = self._headers.items()
        said.update(pair for pair in told if own[AGENT] != TOUCH or pair[0] not in _BUDGETS)
        call = InnerCall(
            *(self._name, request_id, attempt, _CHAT, service_class, said.items()),
            msgspec.json.encode(body),
            on_end=on_end,
            on_piece=on_piece,
        )
        self._gateway.take(call)
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
        raise UpstreamFailed(f"the answer is no JSON object: {error}") from error


def _failure(answer: InnerAnswer) -> KairosError:
    """What the call was answered; a connection that broke is an engine's failure."""
    status = answer.status
    if status is None:
        return UpstreamFailed("the answer broke off")
    failure = refusal(status, read_error(answer.body))
    failure.retry_after_s = answer.retry_after_s
    return failure


def _as_answered(told: KairosError, failure: KairosError) -> KairosError:
    """With another's status, code and time to wait."""
    told.status, told.code = failure.status, failure.code
    told.retry_after_s = failure.retry_after_s
    return told
