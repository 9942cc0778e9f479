"""Routes for autoscalers: queued work, used capacity, and future work of open workflows."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response

from kairos.core import Look, highest_utilisation, load_of_pool, look_at_pool, most_waiting_s
from kairos.gateway.operators.operators_front import Decides


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
