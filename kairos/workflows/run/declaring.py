"""A run says beforehand which calls its rows will make."""

import asyncio
import logging

from kairos.core.errors import KairosError
from kairos.proxy.llm.http_llm import HttpLLM
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import planned_work

logger = logging.getLogger(__name__)

_WAIT_S = 5.0
_AGAIN_S = 60.0  # whoever decides may have been started again, and does not keep it


async def declare_plan(llm: HttpLLM, app: str, plan: Plan) -> None:
    """To a Kairos. Another server refuses it, and loses nothing by that."""
    work = planned_work(plan)
    if work is None:
        return
    try:
        async with asyncio.timeout(_WAIT_S):
            await llm.declare_plan(app, work)
    except (KairosError, TimeoutError) as error:
        logger.debug("the plan of %s was not declared: %s", app, error)


async def keep_declaring(llm: HttpLLM, app: str, plan: Plan) -> None:
    """Say it again once in a while, until cancelled: to whoever knows it, that changes nothing."""
    while True:
        await asyncio.sleep(_AGAIN_S)
        await declare_plan(llm, app, plan)
