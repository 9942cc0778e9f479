"""Routes under `/v1/flows`: store, show, delete and invoke flows.

Each client sees only its own tenant's flows.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from kairos.core import SECOND, InvalidRequest, KairosError
from kairos.gateway import INTERNAL_ERROR, Access, authorization_of, small_body
from kairos.request import CLIENT_KEY, Bodies, Caller, ClientResponse
from kairos.settings import FlowSettings
from kairos.workflows.compile.check import every_operator
from kairos.workflows.serve.invoke_body import THREAD_BYTES, read_invoke, result_view, row_of_inputs
from kairos.workflows.serve.invoke_response import InvocationAnswer, InvocationStream, LastingAnswer
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
        return _answer(
            flow_view(await asyncio.to_thread(self._store.find, tenant, name), whole=True)
        )

    async def delete(self, request: HttpRequest, name: str) -> Response:
        tenant = (await self._caller(request)).tenant
        await asyncio.to_thread(self._store.delete, tenant, name)
        return _answer({"id": name, "object": "flow", "deleted": True})

    async def invoke(self, request: HttpRequest, name: str) -> Response:
        caller = await self._caller(request)
        held = ClientResponse("", request.scope[CLIENT_KEY], caller.tenant)
        release = partial(self._bodies.end, held)
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
            self._bodies.hold(len(part), held)
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
        return InvocationStream(run, view, _meant) if wanted.stream else InvocationAnswer(run, view)

    async def _caller(self, request: HttpRequest) -> Caller:
        return await self._access.admitted(authorization_of(request))


def _meant(error: Exception) -> KairosError:
    if isinstance(error, KairosError):
        return error
    logger.error("an invocation of a flow met an error of Kairos's own", exc_info=error)
    return INTERNAL_ERROR


def _answer(view: object) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")
