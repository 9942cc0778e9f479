"""Error responses of FastAPI applications, in the format of OpenAI's API."""

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from kairos.core import Header, KairosError
from kairos.gateway.server.openai_errors import INTERNAL_ERROR, RequestIds, new_id
from kairos.observe import AuditLog
from kairos.request import RouteRefused, error_body, error_headers, is_passed_on


def error_response(error: KairosError) -> JSONResponse:
    """Return the error as a response in OpenAI's format."""
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse(error_body(error), error.status, headers)


def answer_errors_as_openai_does(app: FastAPI, audit: AuditLog | None = None) -> None:
    """Register handlers that answer errors in OpenAI's format. `audit` records refusals."""

    async def answer(request: HttpRequest, error: Exception) -> JSONResponse:
        if not isinstance(error, KairosError):
            error = INTERNAL_ERROR
        if audit is not None:
            audit.log_refusal(error, None, client_host(request))
        response = error_response(error)
        response.headers[Header.REQUEST_ID] = (
            new_id()
        )  # an unexpected error never reaches RequestIds
        return response

    async def no_route(request: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:100]!r}"
        allowed = _methods_of(request) if error.status_code == 405 else None
        refused = RouteRefused(error.status_code, f"there is no {what} here", allowed)
        return await answer(request, refused)

    app.add_exception_handler(KairosError, answer)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, answer)
    app.add_middleware(RequestIds)


def _methods_of(request: HttpRequest) -> str:
    """Return the methods of all routes that have the path: the application stops at the first."""
    routes = [
        each
        for each in request.app.routes
        if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE
    ]
    own: list[Route] = [each for each in routes if isinstance(each, APIRoute)]
    if not own and is_passed_on("POST", request.url.path):
        own = routes  # the one for all of `/v1`
    methods = {method for each in own for method in each.methods or ()}
    methods = methods or {"GET"}  # of models
    more = {"HEAD", "OPTIONS"} if "GET" in methods else {"OPTIONS"}
    return ", ".join(sorted(methods | more))


def client_host(request: HttpRequest) -> str | None:
    return None if request.client is None else request.client.host
