"""Answer to `POST /v1/flows/{name}/invoke`: JSON, or a stream of events.

When the client disconnects, the invocation and its calls are cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kairos.core import KairosError
from kairos.request import error_body
from kairos.workflows.serve.invocation import FlowResult, OperatorFinished

MOST_EVENTS = 1_000  # of operators, in one stream
KEEP_ALIVE_S = 5.0  # between comments in an idle stream
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
_WAITING = b": running\n\n"
_DONE = b"data: [DONE]\n\n"

Run = Callable[[Callable[[OperatorFinished], None]], Awaitable[FlowResult]]
View = Callable[[FlowResult], dict[str, Any]]
Meant = Callable[[Exception], KairosError]


class LastingAnswer(Response):
    """Response that releases a resource when it ends."""

    def __init__(self, answer: Response, release: Callable[[], None]) -> None:
        super().__init__()
        self._answer, self._release = answer, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._release()


class InvocationAnswer(Response):
    """Response with the outputs, sent when the invocation has ended."""

    def __init__(self, run: Run, view: View) -> None:
        super().__init__()
        self._run, self._view = run, view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the invocation and answer. Raises KairosError: it failed, and nothing was sent."""
        result = await _unless_left(self._run(lambda _: None), receive)
        if result is not None:
            body = msgspec.json.encode(self._view(result))
            await Response(body, media_type="application/json")(scope, receive, send)


class InvocationStream(Response):
    """Stream of finished operators, ending with the outputs or an error."""

    def __init__(self, run: Run, view: View, meant: Meant) -> None:
        """Prepare a stream.

        `meant`: returns the client's error for an exception during the stream.
        """
        super().__init__()
        self._run, self._view, self._meant = run, view, meant
        self._events: asyncio.Queue[bytes] = asyncio.Queue()
        self._told = self._left_out = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        telling = asyncio.create_task(self._tell(send))
        try:
            if await _unless_left(self._ran(), receive):
                await telling
        finally:
            telling.cancel()

    async def _ran(self) -> bool:
        """Run the invocation; return true once the stream's end is queued."""
        try:
            view = self._view(await self._run(self._finished))
            if self._left_out:
                view["events_left_out"] = self._left_out
            self._put("outputs", view)
        except Exception as error:  # noqa: BLE001 - reported in the stream; logged if it is our own
            self._put("error", error_body(self._meant(error)))
        self._events.put_nowait(_DONE)
        return True

    def _finished(self, finished: OperatorFinished) -> None:
        if self._told == MOST_EVENTS:
            self._left_out += 1
            return
        self._told += 1
        self._put("operator", {"object": "flow.operator", **msgspec.to_builtins(finished)})

    def _put(self, name: str, value: dict[str, Any]) -> None:
        data = msgspec.json.encode(value)
        self._events.put_nowait(b"event: %b\ndata: %b\n\n" % (name.encode(), data))

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_STREAM)})
        event = b""
        while event is not _DONE:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    event = await self._events.get()
            except TimeoutError:
                event = _WAITING
            more = event is not _DONE
            await send({"type": "http.response.body", "body": event, "more_body": more})


async def _unless_left(work: Awaitable[Any], receive: Receive) -> Any:
    """Return the result of the work; None if the client disconnects first, which cancels the work.

    Exceptions of the work are raised.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    message: MutableMapping[str, Any] = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
