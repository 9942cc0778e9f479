"""The application that clients reach with all but calls.

Those go straight to the gateway (`connection.py`): FastAPI's own request and response objects cost
more than everything that Kairos does with a call, and its streaming response does not notice a
client that leaves before the first byte. Only rarer ones that pass through to an engine come this
way.
"""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.routing import Route
from starlette.types import ASGIApp

from kairos import __version__
from kairos.errors import ModelNotFound
from kairos.live.frontend.gateway import Gateway
from kairos.live.frontend.health import MetricFamilies, add_health
from kairos.live.frontend.openai_errors import answer_errors_as_openai_does
from kairos.live.frontend.openapi import description
from kairos.live.frontend.passed import PASSED
from kairos.live.observers.audit_log import AuditLog
from kairos.live.request.access import Access, authorization
from kairos.live.request.identity.agent_urls import NamedRoutes


def build_app(
    gateway: Gateway,
    access: Access,
    metrics: MetricFamilies,
    add_insight: Callable[[FastAPI], None],
    add_batches: Callable[[FastAPI], None],
    audit: AuditLog | None = None,
) -> ASGIApp:
    """The application that clients reach. `add_insight` adds the routes to look into workflows,
    `add_batches` those of files and batches. `audit`: is told who is refused."""
    app = FastAPI(
        title="Kairos", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi = description  # type: ignore[method-assign]

    # Well is a gateway while at least one instance can take requests.
    add_health(app, lambda: bool(gateway.served_models()), metrics)
    add_models(app, access, gateway.served_models)
    add_insight(app)
    add_batches(app)
    for path in ("/v1/{rest:path}", *sorted(PASSED)):
        app.router.routes.append(Route(path, gateway, methods=["GET", "POST", "DELETE"]))
    answer_errors_as_openai_does(app, audit)
    return NamedRoutes(app)


def add_models(app: FastAPI, access: Access, served_models: Callable[[], list[str]]) -> None:
    @app.get("/v1/models")
    async def models(request: HttpRequest) -> dict[str, object]:
        await access.admitted(authorization(request))
        return {"object": "list", "data": [_model(name) for name in served_models()]}

    @app.get("/v1/models/{name:path}")
    async def model(request: HttpRequest, name: str) -> dict[str, object]:
        await access.admitted(authorization(request))
        if name not in served_models():
            raise ModelNotFound(name, served_models())
        return _model(name)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kairos"}
