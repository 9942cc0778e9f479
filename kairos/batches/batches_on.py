"""Batches in a process with a directory for them: their routes, and their driver.

Every process with the directory serves `/v1/files` and `/v1/batches`, as in OpenAI's API; each
client sees only its tenant's. One of them drives: the one that holds the directory's lock. If it
dies, another takes the lock within a second, and repeats the calls without a result on disk.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, Response
from starlette.requests import ClientDisconnect

from kairos.batches.driver import BatchDriver
from kairos.batches.openapi import (
    BATCHES,
    MAX_BATCHES,
    MAX_FILES,
    MAX_KEY_CHARACTERS,
    BatchAsked,
    with_batches,
)
from kairos.batches.records import (
    ENDPOINTS,
    IDEMPOTENCY_KEY,
    MAX_KEY,
    MAX_METADATA,
    MAX_VALUE,
    BatchRecord,
    FileRecord,
    NoSuchFile,
    new_name,
    window_s,
)
from kairos.batches.store import KeptBatches
from kairos.batches.uploads import UploadsUnderWay, kept_for, upload
from kairos.batches.views import FileDeleted, batch_list, batch_view, file_list, file_view
from kairos.core import RAW_HEADERS, SECOND, Header, InvalidRequest
from kairos.gateway import (
    Access,
    Gateway,
    InnerGateway,
    ServiceClasses,
    authorization_of,
    json_body,
    number_of,
)
from kairos.request import Caller, valid_identifier

logger = logging.getLogger(__name__)

_BATCH = "batch"  # service class of a batch that names none
_BODY_BYTES = 64 << 10
_LOCK_S = 1.0  # between two attempts to take the lock
_RESTART_S = 5.0
_SWEEP_S = 60.0  # between two removals of expired files


class BatchesOn:
    def __init__(
        self, kept: KeptBatches, access: Access, gateway: Gateway, now: Callable[[], int]
    ) -> None:
        """`now`: µs since the Unix epoch."""
        self._kept, self._now = kept, now
        self._gateway = InnerGateway(gateway)
        self._driver: BatchDriver | None = None  # while this process drives
        self._routes = BatchRoutes(kept, access, lambda: gateway.classes, self._wake, now)

    def add_to(self, app: FastAPI) -> None:
        self._routes.add_to(app)
        described = with_batches(app.openapi())
        app.openapi = lambda: described  # type: ignore[method-assign]

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self._drive(), self._sweep()]

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    async def _drive(self) -> None:
        while True:
            with self._kept.driving() as is_ours:
                if is_ours:
                    await self._drive_on()
            await asyncio.sleep(_LOCK_S)

    async def _drive_on(self) -> None:
        try:
            self._driver = BatchDriver(self._kept, self._gateway, self._now)
            await self._driver.run()
        except (OSError, sqlite3.Error) as error:
            logger.warning("batches are paused for %g s: %s", _RESTART_S, error)
            await asyncio.sleep(_RESTART_S)
        finally:
            self._driver = None

    async def _sweep(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._kept.files.remove_old, self._now() // SECOND)
            except (OSError, sqlite3.Error) as error:
                logger.warning("old files of batches cannot be removed: %s", error)
            await asyncio.sleep(_SWEEP_S)


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
        self._under_way = UploadsUnderWay()

    def add_to(self, app: FastAPI) -> None:
        app.post("/v1/files")(self.create_file)
        app.get("/v1/files")(self.list_files)
        app.get("/v1/files/{file_id}")(self.show_file)
        app.get("/v1/files/{file_id}/content")(self.read_file)
        app.delete("/v1/files/{file_id}")(self.delete_file)
        app.post("/v1/batches")(self.create_batch)
        app.get("/v1/batches")(self.list_batches)
        app.get("/v1/batches/{batch_id}")(self.show_batch)
        app.post("/v1/batches/{batch_id}/cancel")(self.cancel_batch)

    async def create_file(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        files, digest = self._kept.files, _asked_as(request)
        limit_bytes = await asyncio.to_thread(files.room, tenant, digest)
        name = new_name("file")
        path = files.path_of(name)
        with self._under_way.one_of(tenant):
            try:
                uploaded = await upload(request, path, limit_bytes)
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads
            now_s = self._now_s
            record = FileRecord(
                id=name,
                tenant=tenant,
                purpose=uploaded.purpose,
                filename=uploaded.filename,
                size_bytes=uploaded.size_bytes,
                created_s=now_s,
                expires_s=files.expires_s(now_s, uploaded.kept_s),
                asked_as=digest,
            )
            try:
                kept = await asyncio.to_thread(files.add, record)
            except Exception:  # cut off, the thread goes on: what it keeps must have its content
                path.unlink(missing_ok=True)
                raise
            if kept.id != name:
                path.unlink(missing_ok=True)
        return _answer(file_view(kept))

    async def list_files(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        most = number_of(request, "limit", MAX_FILES, 1, MAX_FILES)
        after, order = request.query_params.get("after"), request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order must be asc or desc")
        found = await asyncio.to_thread(
            self._kept.files.files_of,
            tenant,
            self._now_s,
            after,
            most + 1,
            purpose=request.query_params.get("purpose"),
            latest_first=order == "desc",
        )
        return _answer(file_list(found, most))

    async def show_file(self, request: HttpRequest, file_id: str) -> Response:
        return _answer(file_view(await self._find_file(request, file_id)))

    async def read_file(self, request: HttpRequest, file_id: str) -> Response:
        record = await self._find_file(request, file_id)
        path = self._kept.files.path_of(record.id)
        if not await asyncio.to_thread(path.exists):
            raise NoSuchFile(file_id)
        return FileResponse(path, media_type="application/octet-stream")

    async def delete_file(self, request: HttpRequest, file_id: str) -> Response:
        tenant = await self._tenant(request)
        await asyncio.to_thread(self._kept.files.delete, tenant, file_id, self._now_s)
        return _answer(FileDeleted(file_id))

    async def _find_file(self, request: HttpRequest, file_id: str) -> FileRecord:
        tenant = await self._tenant(request)
        return await asyncio.to_thread(self._kept.files.find_file, tenant, file_id, self._now_s)

    async def create_batch(self, request: HttpRequest) -> Response:
        caller = await self._access.admitted_caller(authorization_of(request))
        asked = await json_body(request, BatchAsked, _BODY_BYTES, "the body is not a batch")
        _check_asked(asked)
        record = self._batch_record(asked, caller, request)
        record = await asyncio.to_thread(self._kept.batches.add, record, record.created_s)
        self._wake()
        return await self._shown(caller.tenant, record.id)

    def _batch_record(self, asked: BatchAsked, caller: Caller, request: HttpRequest) -> BatchRecord:
        now_s = self._now_s
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
            asked_as=_asked_as(request),
        )

    def _class_of(self, request: HttpRequest, caller: Caller) -> str:
        """Return the service class asked for; by default `batch`, or else the key's class."""
        named = request.headers.get(Header.CLASS)
        if named is not None:
            return self._classes().of({RAW_HEADERS[Header.CLASS]: named.encode("latin-1")}, caller)
        allowed = caller.service_classes
        return _BATCH if allowed is None or _BATCH in allowed else caller.service_class

    async def list_batches(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        most = number_of(request, "limit", BATCHES, 1, MAX_BATCHES)
        after = request.query_params.get("after")
        found = await asyncio.to_thread(self._kept.batches.batches_of, tenant, after, most + 1)
        return _answer(batch_list(found, most))

    async def show_batch(self, request: HttpRequest, batch_id: str) -> Response:
        return await self._shown(await self._tenant(request), batch_id)

    async def cancel_batch(self, request: HttpRequest, batch_id: str) -> Response:
        tenant = await self._tenant(request)
        await asyncio.to_thread(self._kept.batches.cancel, tenant, batch_id, self._now_s)
        self._wake()
        return await self._shown(tenant, batch_id)

    async def _tenant(self, request: HttpRequest) -> str:
        return (await self._access.admitted_caller(authorization_of(request))).tenant

    @property
    def _now_s(self) -> int:
        return self._now() // SECOND

    async def _shown(self, tenant: str, batch_id: str) -> Response:
        found = await asyncio.to_thread(self._kept.batches.find_batch, tenant, batch_id)
        return _answer(batch_view(*found))


def _answer(view: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


def _asked_as(request: HttpRequest) -> str | None:
    """Return the digest of the request's key; None: it has no key. Raises InvalidRequest."""
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidRequest(f"{IDEMPOTENCY_KEY} has 1 to {MAX_KEY_CHARACTERS} characters")
    return blake2b(key.encode(), digest_size=16).hexdigest()


def _check_asked(asked: BatchAsked) -> None:
    """Check a request. Raises InvalidRequest."""
    if asked.endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}")
    metadata = asked.metadata or {}
    fits = all(len(name) <= MAX_KEY and len(value) <= MAX_VALUE for name, value in metadata.items())
    if len(metadata) > MAX_METADATA or not fits:
        raise InvalidRequest(
            f"metadata may have {MAX_METADATA} pairs, of {MAX_KEY} and {MAX_VALUE} characters"
        )


def _names(request: HttpRequest) -> dict[str, str]:
    """Return the headers that name the app and the agent of the calls. Raises InvalidRequest."""
    named: dict[str, Any] = {each: request.headers.get(each) for each in (Header.APP, Header.AGENT)}
    for header, value in named.items():
        if value is not None and valid_identifier(value.encode("latin-1")) is None:
            raise InvalidRequest(f"header {header.lower()} is not a valid identifier")
    return {header: value for header, value in named.items() if value is not None}
