"""Routes under `/v1/batches`, as in OpenAI's API. Each client sees only its tenant's batches."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos.batches.asked_again import asked_as
from kairos.batches.file_routes import answer
from kairos.batches.kept import KeptBatches
from kairos.batches.records import (
    ENDPOINTS,
    MAX_KEY,
    MAX_METADATA,
    MAX_VALUE,
    BatchRecord,
    new_name,
    window_s,
)
from kairos.batches.uploads import kept_for
from kairos.batches.views import batch_list, batch_view
from kairos.core import RAW_HEADERS, SECOND, Header, InvalidRequest
from kairos.gateway import Access, ServiceClasses, authorization_of, number_of, small_body
from kairos.request import Caller, valid_identifier

BATCH = "batch"  # service class of a batch that names none
BATCHES, MAX_BATCHES = 20, 100  # in one response
_BODY_BYTES = 64 << 10


class _Expiry(msgspec.Struct, frozen=True):
    anchor: str
    seconds: int


class BatchAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: _Expiry | None = None


class BatchRoutes:
    def __init__(
        self,
        kept: KeptBatches,
        access: Access,
        classes: Callable[[], ServiceClasses],
        wake: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        """Prepare the routes.

        `wake`: called when there is new work. `now`: µs since the Unix epoch.
        """
        self._kept, self._access, self._classes = kept, access, classes
        self._wake, self._now = wake, now

    def add_to(self, app: FastAPI) -> None:
        app.post("/v1/batches")(self.create)
        app.get("/v1/batches")(self.all)
        app.get("/v1/batches/{batch_id}")(self.one)
        app.post("/v1/batches/{batch_id}/cancel")(self.cancel)

    async def create(self, request: HttpRequest) -> Response:
        caller = await self._access.admitted_caller(authorization_of(request))
        asked = _asked(await small_body(request, _BODY_BYTES))
        record = self._record(asked, caller, request)
        record = await asyncio.to_thread(self._kept.batches.add, record, record.created_s)
        self._wake()
        return await self._shown(caller.tenant, record.id)

    def _record(self, asked: BatchAsked, caller: Caller, request: HttpRequest) -> BatchRecord:
        now_s = self._now() // SECOND
        expiry = asked.output_expires_after
        return BatchRecord(
            id=new_name("batch"),
            caller=caller,
            service_class=self._class_of(request, caller),
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            completion_window=asked.completion_window,
            headers=_names(request),
            metadata=asked.metadata,
            output_kept_s=None if expiry is None else kept_for(expiry.anchor, expiry.seconds),
            created_s=now_s,
            expires_s=now_s + window_s(asked.completion_window),
            asked_as=asked_as(request),
        )

    def _class_of(self, request: HttpRequest, caller: Caller) -> str:
        """Return the service class asked for; by default `batch`, or else the key's class."""
        named = request.headers.get(Header.CLASS)
        if named is not None:
            return self._classes().of({RAW_HEADERS[Header.CLASS]: named.encode("latin-1")}, caller)
        allowed = caller.service_classes
        return BATCH if allowed is None or BATCH in allowed else caller.service_class

    async def all(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        most = number_of(request, "limit", BATCHES, 1, MAX_BATCHES)
        after = request.query_params.get("after")
        found = await asyncio.to_thread(self._kept.batches.batches_of, tenant, after, most + 1)
        return answer(batch_list(found, most))

    async def one(self, request: HttpRequest, batch_id: str) -> Response:
        return await self._shown(await self._tenant(request), batch_id)

    async def cancel(self, request: HttpRequest, batch_id: str) -> Response:
        tenant = await self._tenant(request)
        now_s = self._now() // SECOND
        await asyncio.to_thread(self._kept.batches.cancel, tenant, batch_id, now_s)
        self._wake()
        return await self._shown(tenant, batch_id)

    async def _tenant(self, request: HttpRequest) -> str:
        return (await self._access.admitted_caller(authorization_of(request))).tenant

    async def _shown(self, tenant: str, batch_id: str) -> Response:
        return answer(
            batch_view(*await asyncio.to_thread(self._kept.batches.find_batch, tenant, batch_id))
        )


def _asked(body: bytes) -> BatchAsked:
    """Decode and check a request. Raises InvalidRequest."""
    try:
        asked = msgspec.json.decode(body, type=BatchAsked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a batch: {error}") from None
    if asked.endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}")
    metadata = asked.metadata or {}
    fits = all(len(name) <= MAX_KEY and len(value) <= MAX_VALUE for name, value in metadata.items())
    if len(metadata) > MAX_METADATA or not fits:
        raise InvalidRequest(
            f"metadata may have {MAX_METADATA} pairs, of {MAX_KEY} and {MAX_VALUE} characters"
        )
    return asked


def _names(request: HttpRequest) -> dict[str, str]:
    """Return the headers that name the app and the agent of the calls. Raises InvalidRequest."""
    named: dict[str, Any] = {each: request.headers.get(each) for each in (Header.APP, Header.AGENT)}
    for header, value in named.items():
        if value is not None and valid_identifier(value.encode("latin-1")) is None:
            raise InvalidRequest(f"header {header.lower()} is not a valid identifier")
    return {header: value for header, value in named.items() if value is not None}
