"""Parts of FastAPI's routes: short bodies, numbers of a query, JSON, errors in OpenAI's format."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from kairos.core import BodyTooLarge, InvalidRequest, KairosError
from kairos.gateway.auth.access import Access, authorization_of
from kairos.gateway.server.connection_limits import address_of
from kairos.gateway.server.openai_errors import INTERNAL_ERROR, whole_error
from kairos.observe import OnError
from kairos.request import RouteRefused, is_passed_on

T = TypeVar("T")


async def small_body(request: Request, most_bytes: int) -> bytes:
    """Return the body. Raises BodyTooLarge: It exceeds `most_bytes`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise BodyTooLarge(most_bytes)
    return bytes(body)


async def json_body(request: Request, kind: type[T], most_bytes: int, otherwise: str) -> T:
    """Parse the body. `otherwise` is the error's beginning.

    Raises:
        BodyTooLarge: It exceeds `most_bytes`.
        InvalidRequest: It is malformed.
    """
    body = await small_body(request, most_bytes)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{otherwise}: {error}") from None


def refuse_routes(
    app: FastAPI, access: Access, refusal: type[KairosError], paths: list[str], methods: list[str]
) -> None:
    """Refuse requests to these paths, and to all below them, once the caller was admitted."""

    async def refuse(request: Request) -> Response:
        await access.admitted_caller(authorization_of(request))
        raise refusal

    for path in paths:
        app.api_route(path, methods=methods)(refuse)
        app.api_route(f"{path}/{{rest:path}}", methods=methods)(refuse)


def number_of(request: Request, name: str, usual: int, least: int, most: int) -> int:
    """Return a number from the query, or `usual` if it is missing.

    Raises InvalidRequest: The number is malformed or out of range.
    """
    text = request.query_params.get(name, str(usual))
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not least <= number <= most:
        raise InvalidRequest(f"{name} must be a number from {least} to {most}")
    return number


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def answer_errors_as_openai_does(app: FastAPI, on_error: OnError | None = None) -> None:
    """Register handlers that answer errors in OpenAI's format. `on_error` counts them."""

    async def answer(request: Request, error: Exception) -> Response:
        if not isinstance(error, KairosError):
            error = INTERNAL_ERROR
        if on_error is not None:
            on_error(error, None, address_of(request.scope["client"]))
        headers, body = whole_error(error)
        return Response(body, error.status, {n.decode(): v.decode() for n, v in headers})

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:100]!r}"
        allowed = _methods_of(request) if error.status_code == 405 else None
        refused = RouteRefused(error.status_code, f"there is no {what} here", allowed)
        return await answer(request, refused)

    app.add_exception_handler(KairosError, answer)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, answer)


def _methods_of(request: Request) -> str:
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
