"""The FastAPI application for client requests, except calls and the routes of `front.py`.

Calls go straight to the gateway (`connection.py`): FastAPI's own request and response objects cost
more than everything that Kairos does with a call, and its streaming response does not notice a
client that leaves before the first byte.
"""

from collections.abc import Callable, Iterable
from typing import NoReturn

from fastapi import FastAPI, Request
from starlette.routing import Route

from kairos import __version__
from kairos.core import FactSink
from kairos.gateway.api.fastapi_parts import answer_errors_as_openai_does
from kairos.gateway.api.insight import add_plans
from kairos.gateway.api.openapi import description
from kairos.gateway.auth.access import Access, authorization_of
from kairos.observe import OnError
from kairos.request import PASSED_ROUTES, ASGIApp, RouteRefused


def build_app(
    sink: FactSink,
    access: Access,
    add_rooms: Iterable[Callable[[FastAPI], None]],
    on_error: OnError,
) -> ASGIApp:
    """Build the application. `add_rooms` add routes: views of workflows, files and batches, flows.

    `on_error` counts errors.
    """
    app = FastAPI(
        title="Kairos", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi = description  # type: ignore[method-assign]

    add_plans(app, access, sink)
    for add_room in add_rooms:
        add_room(app)

    async def closed(request: Request) -> NoReturn:
        await access.admitted_caller(authorization_of(request))
        raise RouteRefused(404, f"there is no {request.url.path[:100]!r} here")

    # What remains below `/v1` is none of the calls, which do not come here.
    for path in ("/v1/{rest:path}", *sorted(PASSED_ROUTES)):
        app.router.routes.append(Route(path, closed, methods=["GET", "POST", "DELETE"]))
    answer_errors_as_openai_does(app, on_error)
    return app
