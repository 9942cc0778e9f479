"""Operators' routes, on a port of their own: the application behind `operators.py`.

Operators see, add and remove instances here while Kairos runs. Autoscalers ask for queued work,
used capacity, and future work of open workflows.
"""

import os
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response

from kairos import __version__
from kairos.core import (
    InvalidRequest,
    Look,
    SetupError,
    highest_utilisation,
    load_of_pool,
    look_at_pool,
    most_waiting_s,
)
from kairos.engines import Fleet, Monitor
from kairos.gateway.api.fastapi_parts import answer_errors_as_openai_does, json_body, json_response
from kairos.gateway.operators.operators import Decides, OperatedBrain
from kairos.settings import EngineSettings, check_engine

_LIMIT_BYTES = 16 << 10


class NotForPages(InvalidRequest):
    """A web page may not change instances.

    A browser sends an Origin with a page's request, whichever address it uses; operators' tools do
    not. Otherwise any page open in a browser that reaches these routes could redirect all calls.
    """

    status = 403
    code = "not_for_pages"
    says = "no web page may change instances (the request has an Origin)"


def add_views(app: FastAPI, fleet: Fleet) -> None:
    @app.get("/admin/instances")
    async def instances() -> Response:
        """Return each instance: whether it is in use, and how many calls run there."""
        return json_response({"instances": fleet.views()})


def add_changes(app: FastAPI, fleet: Fleet) -> None:
    @app.post("/admin/instances", status_code=201)
    async def add(request: Request) -> Response:
        """Add an instance. The body is an engine's settings, as JSON. A draining one is kept."""
        _check_origin(request)
        engine = await read_engine(request)
        request.state.changed = engine.id
        return json_response(fleet.add(engine), 201)

    @app.delete("/admin/instances/{instance_id}", status_code=202)
    async def drain(request: Request, instance_id: str) -> Response:
        """Drain an instance: it gets no new calls, and is removed once its last call has ended."""
        _check_origin(request)
        return json_response(fleet.drain(instance_id), 202)


def _check_origin(request: Request) -> None:
    if "origin" in request.headers:
        raise NotForPages


async def read_engine(request: Request) -> EngineSettings:
    """Parse an engine's settings.

    Raises InvalidRequest: The body does not describe a usable engine.
    """
    otherwise = "the body is not an engine"
    engine = await json_body(request, EngineSettings, _LIMIT_BYTES, otherwise)
    try:
        check_engine(engine, os.environ)
    except SetupError as error:
        raise InvalidRequest(str(error)) from None
    return engine


def build_admin(
    brain: OperatedBrain,
    monitor: Monitor,
    fleet: Fleet,
    *,
    has_changes: bool = True,
    add_pages: Callable[[FastAPI], None] | None = None,
) -> FastAPI:
    """Build the application.

    Without `has_changes` the routes that change instances are left out: where the port also
    serves /health and /metrics to everyone, as in a process without clients. `add_pages` adds the
    page.
    """
    # No /docs: that page has the browser ask other hosts.
    app = FastAPI(title="Kairos for operators", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/admin/status")
    async def status() -> dict[str, Any]:
        """Return what waits, what runs where, and why an instance is not in use."""
        ledger = brain.balancer.ledger
        return {
            "decides": brain.decides,  # false: another process of the pool decides
            "waiting": brain.balancer.waiting,
            "instances": {
                instance.id: {
                    "models": instance.models,
                    "running": ledger.running(instance.id),
                    "max_num_seqs": instance.max_num_seqs,
                    "kv_booked_tokens": round(ledger.held_tokens(instance.id, brain.balancer.at)),
                    "kv_tokens": instance.kv_tokens,
                    "circuit": brain.balancer.faults.circuits.state(instance.id, brain.now()),
                }
                for instance in ledger.instances.values()
            },
            "not_in_use": monitor.problems,
            "draining": fleet.draining(),
        }

    add_scaling(app, brain)
    add_views(app, fleet)
    brain.add_tenants(app)
    if add_pages is not None:
        add_pages(app)
    if has_changes:
        add_changes(app, fleet)
    answer_errors_as_openai_does(app)
    return app


class WorkView(msgspec.Struct, frozen=True, kw_only=True):
    """Response of `/admin/work`, which `kairos plan-autoscale` reads."""

    decides: bool  # false: another process of the pool decides
    waiting: int  # calls
    look: Look


def add_scaling(app: FastAPI, brain: Decides) -> None:
    @app.get("/admin/scaling")
    async def scaling() -> dict[str, Any]:
        """Return seconds of queued work and the used share of the pool: worst model, and each."""
        models = load_of_pool(brain.balancer)
        return {
            "decides": brain.decides,  # false: another process of the pool decides
            "waiting_work_seconds": most_waiting_s(models),
            "busy_ratio": highest_utilisation(models),
            "models": {
                name: {
                    "waiting_work_seconds": each.waiting_work_s,
                    "busy_ratio": each.busy,
                    "instances": each.instances,
                    "running": each.running,
                }
                for name, each in models.items()
            },
        }

    @app.get("/admin/work")
    async def work() -> Response:
        """Return the work that open workflows will bring.

        Rows of similar workflows together, their calls in flight, and their remaining execution
        time in seconds.
        """
        balancer = brain.balancer
        view = WorkView(
            decides=brain.decides,
            waiting=balancer.waiting,
            look=look_at_pool(balancer, brain.now()),
        )
        return json_response(view)
