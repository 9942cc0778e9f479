"""Changes of agents' learnt figures over the last hours: the JSON of `/ui/data/agents/history`.

Once a minute, a point is added for each agent whose figures changed. Memory is bounded: 1,000
agents with 240 points each, 6 MB; beyond that the agents that changed longest ago are evicted.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from math import isnan, nan

import msgspec

from kairos.core import SECOND, AgentKey, AgentStatus, KairosError, Orchestrator, WorkEstimates

EVERY_S = 60
POINTS, MOST_AGENTS = 240, 1_000
_FIELDS = 7  # of a point: minute, calls, rank, call, remaining, distance, changes of behaviour


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


class AgentHistory:
    """History of agents; `run` records it in the background."""

    def __init__(
        self,
        now: Callable[[], int],
        estimates: Callable[[], WorkEstimates],
        followed: Callable[[], Orchestrator],
    ) -> None:
        """Create it with the sources of `Agents`. `now` returns µs."""
        self._now, self._estimates, self._followed = now, estimates, followed
        self._begun_at = now()
        self._known: OrderedDict[AgentKey, array[float]] = OrderedDict()

    async def run(self) -> None:
        while True:
            try:
                for tenant in self._followed().profiles.tenants():
                    self.note(tenant)
                    await asyncio.sleep(0)  # tenants may have many
            except KairosError:  # others follow the workflows now
                pass
            await asyncio.sleep(EVERY_S)

    def note(self, tenant: str) -> None:
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

    def view(self, tenant: str, app: str, agent: str) -> AgentHistoryView:
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
