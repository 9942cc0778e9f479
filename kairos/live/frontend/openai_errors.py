"""Errors as OpenAI's API tells them, and an id for each answer."""

import os
from collections.abc import MutableMapping
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from kairos.errors import (
    InvalidRequest,
    KairosError,
)
from kairos.header_names import RAW, REQUEST_ID
from kairos.live.observers.audit_log import AuditLog
from kairos.live.proxy.asked import STREAMING_ROUTES
from kairos.live.request.client_response import (
    Receive,
    Scope,
    Send,
    error_body,
    error_headers,
)

INTERNAL = KairosError("internal error; the server's log has more")
_REQUEST_ID = RAW[REQUEST_ID]
HOT_ROUTES = STREAMING_ROUTES | {"/v1/embeddings"}


class RouteRefused(InvalidRequest):
    """A path or method that is not served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = "method_not_allowed" if status == 405 else "not_found"


def new_id() -> str:
    return f"req-{os.urandom(16).hex()}"


def error_response(error: KairosError) -> JSONResponse:
    """In OpenAI's format."""
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse(error_body(error), error.status, headers)


def answer_errors_as_openai_does(app: FastAPI, audit: AuditLog | None = None) -> None:
    """`audit`: is told who is refused."""

    async def answer(request: HttpRequest, error: Exception) -> JSONResponse:
        if not isinstance(error, KairosError):
            error = INTERNAL
        if audit is not None:
            audit.refused(error, None, client_host(request))
        response = error_response(error)
        response.headers[REQUEST_ID] = new_id()  # an unexpected error never reaches RequestIds
        return response

    async def no_route(request: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:100]!r}"
        refused = RouteRefused(error.status_code, f"there is no {what} here")
        return await answer(request, refused)

    app.add_exception_handler(KairosError, answer)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, answer)
    app.add_middleware(RequestIds)


def client_host(request: HttpRequest) -> str | None:
    return None if request.client is None else request.client.host


class RequestIds:
    """Gives every response that has none yet an `x-request-id`; calls set their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if not any(name == _REQUEST_ID for name, _ in headers):
                    headers.append((_REQUEST_ID, new_id().encode()))
            await send(message)

        await self._app(scope, receive, send_named)
