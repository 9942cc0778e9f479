"""Agents: what was learnt of them, and how settled it is. The JSON of `/ui/data/agents`."""

from collections.abc import Callable

import msgspec

from kairos.core import AgentProfile, AgentStatus, Orchestrator, WorkEstimates
from kairos.observe import AgentsView, agents_view

AGENTS_PAGE = 50


class AgentsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one tenant's agents, and all tenants with known agents."""

    tenants: list[str]
    tenant: str | None  # null: nothing is known of any
    offset: int
    agents: AgentsView


class AgentsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of the page's data, for encoding outside the event loop."""

    tenants: list[str]
    tenant: str | None
    offset: int
    total: int
    kendall_tau: float | None
    page: list[tuple[AgentStatus, AgentProfile | None, float | None]]


class Agents:
    def __init__(
        self, estimates: Callable[[], WorkEstimates], followed: Callable[[], Orchestrator]
    ) -> None:
        """Create it. `estimates` returns the published estimates.

        `followed` raises where another process follows the workflows, and learns.
        """
        self._estimates, self._followed = estimates, followed

    def seen(self, tenant: str | None, offset: int) -> AgentsSeen:
        """Return a snapshot for the tenant, or for the first one."""
        profiles, estimates = self._followed().profiles, self._estimates()
        tenants = profiles.tenants()
        shown = tenant if tenant or not tenants else tenants[0]
        statuses = [] if shown is None else profiles.status(shown)
        return AgentsSeen(
            tenants=tenants,
            tenant=shown,
            offset=offset,
            total=len(statuses),
            kendall_tau=estimates.kendall_tau,
            page=[
                (each, *estimates.published((shown or "", each.app, each.agent)))
                for each in statuses[offset : offset + AGENTS_PAGE]
            ],
        )


def agents_page(seen: AgentsSeen) -> AgentsPage:
    """Build the page from a snapshot. Pure."""
    return AgentsPage(
        tenants=seen.tenants,
        tenant=seen.tenant,
        offset=seen.offset,
        agents=agents_view(seen.page, seen.total, seen.kendall_tau),
    )
