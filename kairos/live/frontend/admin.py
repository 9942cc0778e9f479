"""Operators' routes, on a port of their own."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fastapi import FastAPI

from kairos import __version__
from kairos.balancer import Balancer
from kairos.live.engines.fleet import Fleet
from kairos.live.engines.monitor import Monitor
from kairos.live.frontend.health import MetricFamilies, add_health
from kairos.live.frontend.hosts import KnownHosts
from kairos.live.frontend.instances import add_changes, add_views
from kairos.live.frontend.openai_errors import answer_errors_as_openai_does
from kairos.live.frontend.operators import Operators
from kairos.live.frontend.scaling import add_scaling
from kairos.live.observers.audit_log import AuditLog
from kairos.live.request.access import Access


class Brain(Protocol):
    """What decides in this process, or stands by to do so."""

    @property
    def balancer(self) -> Balancer: ...

    @property
    def decides(self) -> bool: ...

    def now(self) -> int:
        """In µs."""

    def add_tenants(self, app: FastAPI) -> None:
        """Add the routes to look into workflows and agents of any tenant."""


def build_admin(
    brain: Brain,
    monitor: Monitor,
    fleet: Fleet,
    metrics: MetricFamilies,
    access: Access,
    *,
    names: Iterable[str],
    has_changes: bool = True,
    audit: AuditLog | None = None,
    add_pages: Callable[[FastAPI], None] | None = None,
) -> FastAPI:
    """`names`: by which it may be asked, beside any address (`hosts.py`). `has_changes`: whether
    instances can be changed by them, which they cannot where /health and /metrics are asked for by
    whoever reaches them, as those of a process without clients are. `audit`: is told who did what,
    and who was refused. `add_pages` adds the page."""
    # No /docs: that page has the browser ask other hosts.
    app = FastAPI(title="Kairos for operators", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/admin/status")
    async def status() -> dict[str, Any]:
        """What waits, what runs where, and why an instance is not used."""
        ledger = brain.balancer.ledger
        return {
            "decides": brain.decides,  # false: another process of the pool does, and knows the rest
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
    add_health(app, lambda: bool(monitor.models()), metrics)
    if has_changes:
        add_changes(app, fleet)
    app.add_middleware(Operators, access=access, audit=audit)
    app.add_middleware(KnownHosts, names=names)
    answer_errors_as_openai_does(app)
    return app
