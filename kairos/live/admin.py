"""Operators' routes, on a port of their own."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from kairos import __version__
from kairos.balancer import Balancer
from kairos.live.health import add_health
from kairos.live.monitor import Monitor


def build_admin(
    balancer: Callable[[], Balancer], monitor: Monitor, metrics: Callable[[], bytes] | None = None
) -> FastAPI:
    """`metrics`: also what a process without clients is asked, /health and /metrics."""
    app = FastAPI(title="Kairos for operators", version=__version__)

    @app.get("/admin/status")
    async def status() -> dict[str, Any]:
        """What waits, what runs where, and why an instance is not used."""
        ledger = balancer().ledger
        return {
            "waiting": balancer().waiting,
            "instances": {
                instance.id: {
                    "models": instance.models,
                    "running": ledger.running(instance.id),
                    "max_num_seqs": instance.max_num_seqs,
                    "kv_booked_tokens": ledger.booked_tokens(instance.id),
                    "kv_tokens": instance.kv_tokens,
                }
                for instance in ledger.instances.values()
            },
            "not_in_use": monitor.problems,
        }

    if metrics is not None:
        add_health(app, lambda: bool(monitor.models()), metrics)
    return app
