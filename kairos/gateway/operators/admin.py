"""Operators' routes, on a port of their own: the application behind `operators_front.py`.

Autoscalers ask here for queued work, used capacity, and future work of open workflows.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response

from kairos import __version__
from kairos.core import Look, highest_utilisation, load_of_pool, look_at_pool, most_waiting_s
from kairos.engines import Fleet, Monitor
from kairos.gateway.api.fastapi_errors import answer_errors_as_openai_does
from kairos.gateway.api.health import Probes
from kairos.gateway.operators.instances import add_changes, add_views
from kairos.gateway.operators.operators_front import Decides, OperatedBrain


def build_admin(
    brain: OperatedBrain,
    monitor: Monitor,
    fleet: Fleet,
    probes: Probes,
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
    probes.add_to(app)
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
        return Response(msgspec.json.encode(view), media_type="application/json")
