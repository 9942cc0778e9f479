"""Operators' routes that show, add and remove instances while Kairos runs."""

import os

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response

from kairos.core import InvalidRequest, SetupError
from kairos.engines import Fleet
from kairos.gateway.server.small_body import small_body
from kairos.settings import EngineSettings, check_engine

_LIMIT_BYTES = 16 << 10
_engine = msgspec.json.Decoder(EngineSettings)


class NotForPages(InvalidRequest):
    """A web page may not change instances.

    A browser sends an Origin with a page's request, whichever address it uses; operators' tools do
    not. Otherwise any page open in a browser that reaches these routes could redirect all calls.
    """

    status = 403
    code = "not_for_pages"

    def __init__(self) -> None:
        super().__init__("no web page may change instances (the request has an Origin)")


def add_views(app: FastAPI, fleet: Fleet) -> None:
    @app.get("/admin/instances")
    async def instances() -> Response:
        """Return each instance: whether it is in use, and how many calls run there."""
        return _json({"instances": fleet.views()})


def add_changes(app: FastAPI, fleet: Fleet) -> None:
    @app.post("/admin/instances", status_code=201)
    async def add(request: Request) -> Response:
        """Add an instance. The body is an engine's settings, as JSON. A draining one is kept."""
        _check_origin(request)
        engine = await read_engine(request)
        request.state.changed = engine.id
        return _json(fleet.add(engine), 201)

    @app.delete("/admin/instances/{instance_id}", status_code=202)
    async def drain(request: Request, instance_id: str) -> Response:
        """Drain an instance: it gets no new calls, and is removed once its last call has ended."""
        _check_origin(request)
        return _json(fleet.drain(instance_id), 202)


def _check_origin(request: Request) -> None:
    if "origin" in request.headers:
        raise NotForPages


async def read_engine(request: Request) -> EngineSettings:
    """Parse an engine's settings.

    Raises:
        InvalidRequest: The body does not describe a usable engine.
    """
    body = await small_body(request, _LIMIT_BYTES)
    try:
        engine = _engine.decode(body)
        check_engine(engine, os.environ)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not an engine: {error}") from None
    except SetupError as error:
        raise InvalidRequest(str(error)) from None
    return engine


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
