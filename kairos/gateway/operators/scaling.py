"""What an autoscaler asks for: how much work waits, and how much of the pool is used; and what open
workflows will still bring."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response

from kairos.core.open_work import look
from kairos.core.pool_demand import Look
from kairos.core.pool_load import busiest, most_waiting_s, pool_load
from kairos.gateway.operators.operators_front import Decides


class WorkView(msgspec.Struct, frozen=True, kw_only=True):
    """What `kairos plan-autoscale` reads."""

    decides: bool  # false: another process of the pool does, and knows the rest
    waiting: int  # calls
    look: Look


def add_scaling(app: FastAPI, brain: Decides) -> None:
    @app.get("/admin/scaling")
    async def scaling() -> dict[str, Any]:
        """Seconds of work that wait, and the share of the pool that is used: of the model for which
        they are highest, and of each."""
        models = pool_load(brain.balancer)
        return {
            "decides": brain.decides,  # false: another process of the pool does, and knows the rest
            "waiting_work_seconds": most_waiting_s(models),
            "busy_ratio": busiest(models),
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
        """What open workflows still bring: rows of workflows, their calls in flight, and seconds of
        execution that are left, of those that are alike together."""
        balancer = brain.balancer
        view = WorkView(
            decides=brain.decides,
            waiting=balancer.waiting,
            look=look(balancer, brain.now()),
        )
        return Response(msgspec.json.encode(view), media_type="application/json")
