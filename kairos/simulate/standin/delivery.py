"""Delivery of a reply to the client: streamed, whole, refused, or broken on purpose."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from kairos.simulate.standin.batch import BatchedCall
from kairos.simulate.standin.bodies import Failure
from kairos.simulate.standin.replies import (
    DONE,
    FinishReason,
    Json,
    StandInReply,
    StandInUsage,
    event,
)

MESSAGES = "/v1/messages"
ERROR_NAMES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RefusedReply(Exception):
    """Answered with an error body like vLLM's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def json(self) -> Json:
        error = {"message": str(self), "type": ERROR_NAMES[self.status], "param": None}
        return {"error": error | {"code": self.status}}

    @property
    def as_message(self) -> Json:
        """Return the error as vLLM words it on the messages route."""
        return {"type": "error", "error": {"type": ERROR_NAMES[self.status], "message": str(self)}}


async def stream(
    request: web.Request,
    reply: StandInReply,
    call: BatchedCall,
    finish: FinishReason,
    fail: Failure | None,
    tell_usage: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    async for token in call:
        if call.taken == 1:
            for chunk in reply.begin():
                await response.write(chunk)
        last = call.taken == len(call.reply) and not fail
        await response.write(reply.token(token, finish if last else None))
    if fail:
        return await _break(request, response, fail)
    for chunk in reply.end("".join(call.reply), finish, _usage(call), tell_usage):
        await response.write(chunk)
    return response


async def whole(
    request: web.Request,
    reply: StandInReply,
    call: BatchedCall,
    finish: FinishReason,
    fail: Failure | None,
    more: Json,
) -> web.StreamResponse:
    """Send a whole reply. `more` are additional fields of the answer."""
    async for _ in call:
        pass
    if fail == "error":
        raise _broken()
    if fail:
        return await _break(request, web.Response(), fail)
    return json_answer(reply.whole("".join(call.reply), finish, _usage(call)) | more)


async def _break(
    request: web.Request, response: web.StreamResponse, fail: Failure
) -> web.StreamResponse:
    if fail == "stall":
        await silence()
    if fail == "error" and request.path == MESSAGES:
        await response.write(b"event: error\n" + event(_broken().as_message))
    elif fail == "error":
        await response.write(event(_broken().json) + DONE)
    elif request.transport is not None:
        request.transport.abort()
    return response


def _broken() -> RefusedReply:
    return RefusedReply(
        500, "EngineCore encountered an issue. See stack trace (above) for the cause."
    )


async def silence() -> None:
    await asyncio.get_running_loop().create_future()


def _usage(call: BatchedCall) -> StandInUsage:
    return StandInUsage(call.prompt_tokens, len(call.reply))


def json_answer(body: Json, status: int = 200) -> web.Response:
    content = msgspec.json.encode(body)
    return web.Response(body=content, status=status, content_type="application/json")


@web.middleware
async def refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedReply as refused:
        is_message = request.path.startswith(MESSAGES)
        return json_answer(refused.as_message if is_message else refused.json, refused.status)
