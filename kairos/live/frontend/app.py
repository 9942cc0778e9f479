"""The application that clients reach with all but calls.

Those go straight to the gateway (`connection.py`): FastAPI's own request and response objects cost
more than everything that Kairos does with a call, and its streaming response does not notice a
client that leaves before the first byte. Only rarer ones that pass through to an engine come this
way.
"""

from collections.abc import Callable, Iterable

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.routing import Route
from starlette.types import ASGIApp

from kairos import __version__
from kairos.errors import ModelNotFound
from kairos.live.frontend.declared_plans import add_plans
from kairos.live.frontend.gateway import Gateway
from kairos.live.frontend.health import MetricFamilies, add_health
from kairos.live.frontend.openai_errors import answer_errors_as_openai_does
from kairos.live.frontend.openapi import description
from kairos.live.frontend.own_models import NamesOf
from kairos.live.frontend.passed import PASSED
from kairos.live.observers.audit_log import AuditLog
from kairos.live.request.access import Access, authorization
from kairos.live.request.identity.agent_urls import NamedRoutes


def build_app(
    gateway: Gateway,
    access: Access,
    metrics: MetricFamilies,
    add_rooms: Iterable[Callable[[FastAPI], None]],
    audit: AuditLog | None = None,
) -> ASGIApp:
    """The application that clients reach. `add_rooms` add the routes of other rooms: to look
    into workflows, of files and batches, of flows. `audit`: is told who is refused."""
    app = FastAPI(
        title="Kairos", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi = description  # type: ignore[method-assign]

    # Well is a gateway while at least one instance can take requests.
    add_health(app, lambda: bool(gateway.served_models()), metrics)
    own = gateway.own_models
    add_models(app, access, gateway.served_models, None if own is None else own.names)
    add_plans(app, access, gateway.sink)
    for add_room in add_rooms:
        add_room(app)
    for path in ("/v1/{rest:path}", *sorted(PASSED)):
        app.router.routes.append(Route(path, gateway, methods=["GET", "POST", "DELETE"]))
    answer_errors_as_openai_does(app, audit)
    return NamedRoutes(app)


def add_models(
    app: FastAPI,
    access: Access,
    served_models: Callable[[], list[str]],
    own_models: NamesOf | None = None,
) -> None:
    """`own_models`: those that Kairos has itself, beside engines'."""

    async def names(request: HttpRequest) -> list[str]:
        caller = await access.admitted(authorization(request))
        own = [] if own_models is None else await own_models(caller.tenant)
        return [*served_models(), *own]

    @app.get("/v1/models")
    async def models(request: HttpRequest) -> dict[str, object]:
        return {"object": "list", "data": [_model(name) for name in await names(request)]}

    @app.get("/v1/models/{name:path}")
    async def model(request: HttpRequest, name: str) -> dict[str, object]:
        known = await names(request)
        if name not in known:
            raise ModelNotFound(name, known)
        return _model(name)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kairos"}
