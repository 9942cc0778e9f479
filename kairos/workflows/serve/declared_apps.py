"""Declare in advance which calls invocations will make."""

import logging
from collections.abc import Callable

from kairos.core import SECOND, KairosError, PlanDeclared, SharedLru
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import plan_work

logger = logging.getLogger(__name__)

_APPS = 1_000
_AGAIN_US = 60 * SECOND  # the process that decides may have been restarted since


class DeclaredApps:
    """Record of the plans declared recently, for all tenants.

    A plan is declared once in a while, not with each invocation.
    """

    def __init__(self, feed: Callable[[PlanDeclared], None]) -> None:
        self._feed = feed
        self._told: SharedLru[tuple[str, str], tuple[str, int]] = SharedLru(_APPS)

    def tell(self, tenant: str, app: str, flow: str, plan: Plan, at: int) -> None:
        """Declare that the app's workflows will follow the plan.

        `flow`: digest of the flow; a plan for other settings of the same flow is declared only
        after a minute. `at`: µs since the epoch. A failed declaration is retried after a minute;
        invocations work without it.
        """
        key = tenant, app
        before = self._told.get(key)
        if before is not None and before[0] == flow and at < before[1] + _AGAIN_US:
            return
        self._told.put(tenant, key, (flow, at))
        work = plan_work(plan)
        if work is None:
            return
        try:
            self._feed(PlanDeclared(tenant, app, work))
        except KairosError as error:
            logger.debug("the plan of %s was not declared: %s", app, error)
