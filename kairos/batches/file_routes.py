"""Routes under `/v1/files`, as in OpenAI's API. Each client sees only its tenant's files."""

import asyncio
from collections.abc import Callable

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, Response
from starlette.requests import ClientDisconnect

from kairos.batches.asked_again import asked_as
from kairos.batches.kept import KeptBatches
from kairos.batches.records import FileRecord, NoSuchFile, new_name
from kairos.batches.uploads import Uploaded, UploadsUnderWay, upload
from kairos.batches.views import FileDeleted, file_list, file_view
from kairos.core import SECOND, InvalidRequest
from kairos.gateway import Access, authorization_of, number_of

MAX_FILES = 10_000  # in one response
_DAY_S = 86_400


class FileRoutes:
    def __init__(self, kept: KeptBatches, access: Access, now: Callable[[], int]) -> None:
        """`now`: µs since the Unix epoch."""
        self._kept, self._access, self._now = kept, access, now
        self._under_way = UploadsUnderWay()

    def add_to(self, app: FastAPI) -> None:
        app.post("/v1/files")(self.create)
        app.get("/v1/files")(self.all)
        app.get("/v1/files/{file_id}")(self.one)
        app.get("/v1/files/{file_id}/content")(self.content)
        app.delete("/v1/files/{file_id}")(self.delete)

    async def create(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        files, digest = self._kept.files, asked_as(request)
        limit_bytes = await asyncio.to_thread(files.room, tenant, digest)
        name = new_name("file")
        path = files.path_of(name)
        with self._under_way.one_of(tenant):
            try:
                uploaded = await upload(request, path, limit_bytes)
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads
            record = self._record(name, tenant, uploaded, digest)
            try:
                kept = await asyncio.to_thread(files.add, record)
            except Exception:  # cut off, the thread goes on: what it keeps must have its content
                path.unlink(missing_ok=True)
                raise
            if kept.id != name:
                path.unlink(missing_ok=True)
        return answer(file_view(kept))

    def _record(self, name: str, tenant: str, uploaded: Uploaded, digest: str | None) -> FileRecord:
        now_s, kept_s = self._now_s, self._kept.limits.keep_days * _DAY_S
        if uploaded.kept_s is not None:
            kept_s = min(kept_s, uploaded.kept_s)
        return FileRecord(
            id=name,
            tenant=tenant,
            purpose=uploaded.purpose,
            filename=uploaded.filename,
            size_bytes=uploaded.size_bytes,
            created_s=now_s,
            expires_s=now_s + kept_s,
            asked_as=digest,
        )

    async def all(self, request: HttpRequest) -> Response:
        tenant = await self._tenant(request)
        most = number_of(request, "limit", MAX_FILES, 1, MAX_FILES)
        after, order = request.query_params.get("after"), request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order must be asc or desc")
        found = await asyncio.to_thread(
            self._kept.files.files_of,
            *(tenant, self._now_s, after, most + 1),
            purpose=request.query_params.get("purpose"),
            latest_first=order == "desc",
        )
        return answer(file_list(found, most))

    async def one(self, request: HttpRequest, file_id: str) -> Response:
        return answer(file_view(await self._find(request, file_id)))

    async def content(self, request: HttpRequest, file_id: str) -> Response:
        record = await self._find(request, file_id)
        path = self._kept.files.path_of(record.id)
        if not await asyncio.to_thread(path.exists):
            raise NoSuchFile(file_id)
        return FileResponse(path, media_type="application/octet-stream")

    async def delete(self, request: HttpRequest, file_id: str) -> Response:
        tenant = await self._tenant(request)
        await asyncio.to_thread(self._kept.files.delete, tenant, file_id, self._now_s)
        return answer(FileDeleted(file_id))

    async def _find(self, request: HttpRequest, file_id: str) -> FileRecord:
        tenant = await self._tenant(request)
        return await asyncio.to_thread(self._kept.files.find_file, tenant, file_id, self._now_s)

    async def _tenant(self, request: HttpRequest) -> str:
        return (await self._access.admitted_caller(authorization_of(request))).tenant

    @property
    def _now_s(self) -> int:
        return self._now() // SECOND


def answer(view: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")
