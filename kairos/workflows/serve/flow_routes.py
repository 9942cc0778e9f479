"""Routes under `/v1/flows`: store, show, delete and invoke flows.

Each client sees only its own tenant's flows. An invocation is answered by JSON, or by a stream of
events. When the client disconnects, the invocation and its calls are cancelled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from kairos.core import SECOND, InvalidRequest, KairosError
from kairos.gateway import INTERNAL_ERROR, Access, authorization_of, small_body
from kairos.request import CLIENT_KEY, Bodies, Caller, ClientResponse, error_body
from kairos.settings import FlowSettings
from kairos.workflows.compile.check import every_operator
from kairos.workflows.serve.invocation import FlowResult, OperatorFinished
from kairos.workflows.serve.invoke_body import THREAD_BYTES, read_invoke, result_view, row_of_inputs
from kairos.workflows.serve.invoking import InvocationAsked, Invoking
from kairos.workflows.serve.openapi import with_flows
from kairos.workflows.serve.plans import digest_of
from kairos.workflows.serve.records import FlowRecord, checked_name, flow_view

logger = logging.getLogger(__name__)


class FlowRoutes:
    def __init__(
        self,
        invoking: Invoking,
        access: Access,
        bodies: Bodies,
        settings: FlowSettings,
        now: Callable[[], int],
    ) -> None:
        """`now`: µs since the Unix epoch."""
        self._invoking, self._store = invoking, invoking.store
        self._access, self._bodies, self._settings, self._now = access, bodies, settings, now

    def add_to(self, app: FastAPI) -> None:
        app.get("/v1/flows")(self.all)
        app.put("/v1/flows/{name}")(self.put)
        app.get("/v1/flows/{name}")(self.one)
        app.delete("/v1/flows/{name}")(self.delete)
        app.post("/v1/flows/{name}/invoke")(self.invoke)
        described = with_flows(app.openapi())
        app.openapi = lambda: described  # type: ignore[method-assign]

    async def put(self, request: HttpRequest, name: str) -> Response:
        caller = await self._caller(request)
        checked_name(name)
        body = await small_body(request, self._settings.max_flow_bytes)
        is_json = "json" in request.headers.get("content-type", "")
        record = await self._checked(caller.tenant, name, body, is_json)
        kept = await asyncio.to_thread(self._store.put, caller.tenant, record)
        return _answer(flow_view(kept, whole=False))

    async def _checked(self, tenant: str, name: str, body: bytes, is_json: bool) -> FlowRecord:
        """Raises FlowRefused, InvalidRequest."""
        try:
            source = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the flow is not UTF-8: {error}") from None
        plan = await self._invoking.plans.checked(tenant, name, source, is_json=is_json)
        now_s = self._now() // SECOND
        return FlowRecord(
            name=name,
            source=source,
            is_json=is_json,
            digest=digest_of(source, is_json=is_json),
            inputs=plan.columns,
            outputs=plan.outputs,
            operators=sum(1 for _ in every_operator(plan.declaration.operators)),
            created_s=now_s,
            changed_s=now_s,
        )

    async def all(self, request: HttpRequest) -> Response:
        tenant = (await self._caller(request)).tenant
        found = await asyncio.to_thread(self._store.of, tenant)
        return _answer({"object": "list", "data": [flow_view(each, whole=False) for each in found]})

    async def one(self, request: HttpRequest, name: str) -> Response:
        tenant = (await self._caller(request)).tenant
        found = await asyncio.to_thread(self._store.find, tenant, name)
        return _answer(flow_view(found, whole=True))

    async def delete(self, request: HttpRequest, name: str) -> Response:
        tenant = (await self._caller(request)).tenant
        await asyncio.to_thread(self._store.delete, tenant, name)
        return _answer({"id": name, "object": "flow", "deleted": True})

    async def invoke(self, request: HttpRequest, name: str) -> Response:
        caller = await self._caller(request)
        held = ClientResponse("", request.scope[CLIENT_KEY], caller.tenant)
        release = partial(self._bodies.release_bytes, held)
        try:
            return LastingAnswer(await self._invoked(request, name, caller, held), release)
        except ClientDisconnect:
            release()
            return Response(status_code=400)  # the client has left, so nobody reads this
        except BaseException:
            release()
            raise

    async def _invoked(
        self, request: HttpRequest, name: str, caller: Caller, held: ClientResponse
    ) -> Response:
        body = bytearray()
        async for part in request.stream():
            self._bodies.hold_bytes(len(part), held)
            body += part
        read, size = partial(read_invoke, bytes(body)), len(body)
        body.clear()
        beside = self._invoking.beside
        wanted = await beside(caller.tenant, read) if size > THREAD_BYTES else read()
        asked = InvocationAsked(
            caller,
            name,
            dict(request.scope["headers"]),
            partial(row_of_inputs, wanted.inputs),
            wanted.settings_of(),
            wanted.stream,
            is_large=size > THREAD_BYTES,
        )
        ready = await self._invoking.ready(asked)
        run = partial(self._invoking.run, ready)
        view = partial(result_view, ready.id, name, self._now() // SECOND)
        return InvocationStream(run, view) if wanted.stream else InvocationAnswer(run, view)

    async def _caller(self, request: HttpRequest) -> Caller:
        return await self._access.admitted_caller(authorization_of(request))


def _meant(error: Exception) -> KairosError:
    if isinstance(error, KairosError):
        return error
    logger.error("an invocation of a flow met an error of Kairos's own", exc_info=error)
    return INTERNAL_ERROR


def _answer(view: object) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


MOST_EVENTS = 1_000  # of operators, in one stream
KEEP_ALIVE_S = 5.0  # between comments in an idle stream
_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
_WAITING = b": running\n\n"
_DONE = b"data: [DONE]\n\n"

Run = Callable[[Callable[[OperatorFinished], None]], Awaitable[FlowResult]]
View = Callable[[FlowResult], dict[str, Any]]


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

    def __init__(self, run: Run, view: View) -> None:
        super().__init__()
        self._run, self._view = run, view
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
            self._put("error", error_body(_meant(error)))
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
        await send({"type": "http.response.start", "status": 200, "headers": list(_EVENT_STREAM)})
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
