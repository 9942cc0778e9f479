"""Agents: what was learnt of them, how settled it is, and how it changed over the last hours.

The values are the JSON of `/ui/data/agents` and `/ui/data/agents/history`. Once a minute, a point
of history is added for each agent whose figures changed. Memory is bounded: 1,000 agents with 240
points each, 6 MB; beyond that the agents that changed longest ago are evicted.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from math import isnan, nan

import msgspec

from kairos.core import SECOND, AgentKey, AgentStatus, KairosError, Orchestrator, WorkEstimates
from kairos.observe import AgentsView, agents_view

AGENTS_PAGE = 50

EVERY_S = 60
POINTS, MOST_AGENTS = 240, 1_000
_FIELDS = 7  # of a point: minute, calls, rank, call, remaining, distance, changes of behaviour


class AgentsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one tenant's agents, and all tenants with known agents."""

    tenants: list[str]
    tenant: str | None  # null: nothing is known of any
    offset: int
    agents: AgentsView


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Point of an agent's history. Times in seconds; null: unknown."""

    at: int  # µs since the epoch
    samples: int
    rank_s: float | None
    call_s: float | None  # mean of one call
    remaining_s: float | None  # mean work of the workflow from a call on
    distance: float | None  # of the last two distributions, over the mean: how far from settled
    reopened: int  # times that its behaviour changed, so far


class AgentHistoryView(msgspec.Struct, frozen=True, kw_only=True):
    every_s: int = EVERY_S
    points: list[HistoryPoint]  # where something had changed; it is constant in between


class Agents:
    """Agents as they are, and their history, which `run` records in the background."""

    def __init__(
        self,
        now: Callable[[], int],
        estimates: Callable[[], WorkEstimates],
        followed: Callable[[], Orchestrator],
    ) -> None:
        """Create it. `now` returns µs; `estimates` returns the published estimates.

        `followed` raises where another process follows the workflows, and learns.
        """
        self._now, self._estimates, self._followed = now, estimates, followed
        self._begun_at = now()
        self._known: OrderedDict[AgentKey, array[float]] = OrderedDict()

    def page(self, tenant: str | None, offset: int) -> Callable[[], AgentsPage]:
        """Return a function that builds the tenant's page, or the first one's, in any thread."""
        followed = self._followed()
        tenants = followed.profiles.tenants()
        shown = tenant if tenant or not tenants else tenants[0]
        view = agents_view(followed, self._estimates(), shown or "", offset, AGENTS_PAGE)
        return lambda: AgentsPage(tenants=tenants, tenant=shown, offset=offset, agents=view())

    async def run(self) -> None:
        while True:
            try:
                for tenant in self._followed().profiles.tenants():
                    self.record_changes(tenant)
                    await asyncio.sleep(0)  # tenants may have many
            except KairosError:  # others follow the workflows now
                pass
            await asyncio.sleep(EVERY_S)

    def record_changes(self, tenant: str) -> None:
        """Record the figures of the tenant's agents that have changed."""
        minute = (self._now() - self._begun_at) / (EVERY_S * SECOND)
        for status in self._followed().profiles.status(tenant):
            key = tenant, status.app, status.agent
            point = array("f", [minute, *self._figures(key, status)])
            kept = self._known.get(key)
            if kept is None:
                kept = self._known[key] = array("f")
                if len(self._known) > MOST_AGENTS:
                    self._known.popitem(last=False)
            elif kept[1 - _FIELDS :].tobytes() == point[1:].tobytes():  # NaN equals nothing
                continue
            self._known.move_to_end(key)
            kept.extend(point)
            del kept[: -POINTS * _FIELDS]

    def _figures(self, key: AgentKey, status: AgentStatus) -> tuple[float, ...]:
        profile, rank = self._estimates().published(key)
        return (
            status.samples,
            nan if rank is None else rank / SECOND,
            nan if profile is None else profile.call_us.mean / SECOND,
            nan if profile is None else profile.remaining_us.mean / SECOND,
            nan if status.distance is None else status.distance,
            status.reopened,
        )

    def history(self, tenant: str, app: str, agent: str) -> AgentHistoryView:
        kept = self._known.get((tenant, app, agent), array("f"))
        return AgentHistoryView(
            points=[self._point(kept[n : n + _FIELDS]) for n in range(0, len(kept), _FIELDS)]
        )

    def _point(self, kept: "array[float]") -> HistoryPoint:
        minute, samples, rank, call, remaining, distance, reopened = kept
        return HistoryPoint(
            at=self._begun_at + round(minute * EVERY_S * SECOND),
            samples=round(samples),
            rank_s=_known(rank),
            call_s=_known(call),
            remaining_s=_known(remaining),
            distance=_known(distance),
            reopened=round(reopened),
        )


def _known(value: float) -> float | None:
    return None if isnan(value) else round(value, 6)
