"""Declare in advance which calls the rows of a run will make."""

import asyncio
import logging

from kairos.core import KairosError
from kairos.proxy import HttpLLM
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import plan_work

logger = logging.getLogger(__name__)

_WAIT_S = 5.0
_AGAIN_S = 60.0  # the process that decides may have restarted, and does not store plans


async def declare_plan(llm: HttpLLM, app: str, plan: Plan) -> None:
    """Declare the plan to a Kairos. Another server refuses the request, which does no harm."""
    work = plan_work(plan)
    if work is None:
        return
    try:
        async with asyncio.timeout(_WAIT_S):
            await llm.declare_plan(app, work)
    except (KairosError, TimeoutError) as error:
        logger.debug("the plan of %s was not declared: %s", app, error)


async def keep_declaring(llm: HttpLLM, app: str, plan: Plan) -> None:
    """Repeat the declaration every minute, until cancelled; a repetition changes nothing."""
    while True:
        await asyncio.sleep(_AGAIN_S)
        await declare_plan(llm, app, plan)
