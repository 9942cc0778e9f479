"""Operators' routes, on a port of their own: the application behind `operators_front.py`."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from kairos import __version__
from kairos.engines import Fleet, Monitor
from kairos.gateway.api.fastapi_errors import answer_errors_as_openai_does
from kairos.gateway.api.health import Probes
from kairos.gateway.operators.instances import add_changes, add_views
from kairos.gateway.operators.operators_front import OperatedBrain
from kairos.gateway.operators.scaling import add_scaling


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
