"""Memory kept for what comes back. When a call has ended, its instance still has its context in the
prefix cache, and an agent's next call often begins with all of that. Where the pool is full, others
would take that memory at once; so it is kept for a while, where that pays: a time to live, as
engines have it in Continuum (Li et al., 2025), here from outside, by what the dispatcher leaves
free.

How long pays is learnt, by agent. To keep a context costs its share of the memory, for as long;
when its call comes back, the time to compute it is saved, if it would have been lost. So of the
gaps that were seen between a call and the one that went on from it, and with `fill_us` the time to
compute as many tokens as the memory has, the best time to live is the `t` with most

    P(gap <= t) * LOST * fill_us - E[min(gap, t)],

whatever the size of the context. No more is kept on an instance than its memory holds: what was
left there first is what its engine drops first; of several tenants, that of which most is kept
gives way. Ours.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from kairos.core.agent_key import AgentKey, agent_key
from kairos.core.dispatcher.kept_contexts import KeptContexts
from kairos.core.model import Instance, Request
from kairos.core.shared_lru import SharedLru

LOST = 0.5  # of the contexts that nobody keeps; the others are found all the same
_WINDOW = 64  # gaps of an agent
_FEWEST = 8  # of which something is said
_MAX_AGENTS = 5_000
_MAX_LEFT = 20_000  # contexts that may come back
_FEW = 64  # entries of a heap that may be dead beside as many as are not
_NOTHING = KeptContexts()


class _Left:
    """What a call left behind."""

    request_id: str | None = None  # what came back for it, and waits

    def __init__(
        self,
        agent: AgentKey,
        instance_id: str,
        tokens: int,
        at: int,
        until: int,
        by: int,
    ) -> None:
        self.agent = agent
        self.instance_id = instance_id
        self.tokens = tokens
        self.at = at  # when it ended
        self.until = until  # its memory is kept so long
        self.by = by  # after that it counts as one that did not come back


class KvRetention:
    """What may come back, and for which of it memory is kept. What is kept is known by the last
    stretch of the call's prompt, which a prompt that goes on from it has too."""

    def __init__(self) -> None:
        self._left: SharedLru[int, _Left] = SharedLru(_MAX_LEFT)  # by name, longest ago first
        self._kept: dict[str, KeptContexts] = {}  # of these, by instance
        self._came_back_for: dict[str, int] = {}  # a name, by request id
        # Of these, in order of arrival, those for which memory was kept as they arrived.
        self._in_time: OrderedDict[str, _Left] = OrderedDict()
        # Until when, the next first; those that are not in time any more are in it, too.
        self._in_time_until: list[tuple[int, str]] = []
        self._gaps: SharedLru[AgentKey, deque[float]] = SharedLru(_MAX_AGENTS)

    def ended(
        self, request: Request, instance: Instance, tokens: int, fill_us: float, at: int
    ) -> None:
        """It left a context of so many tokens there. `fill_us`: how long it would take to compute
        as many tokens as the instance's memory has."""
        self._give_up(at)
        if not request.prefix:
            return
        name, agent = request.prefix[-1], agent_key(request)
        self._forget(name)
        worth_us = LOST * fill_us
        until = at + int(time_to_live(self._gaps.get(agent) or (), worth_us))
        left = _Left(agent, instance.id, tokens, at, until, at + int(worth_us))
        for each, gone in self._left.put(agent[0], name, left):
            self._let_go(each, gone)
        if until > at:
            self._keep(name, left, instance, at)

    def _keep(self, name: int, left: _Left, instance: Instance, at: int) -> None:
        kept, tenant = self._kept.get(instance.id), left.agent[0]
        if kept is None:
            kept = self._kept[instance.id] = KeptContexts()
        kept.add(tenant, name, left.tokens, left.until)
        most = instance.kv_tokens or 0
        if kept.tokens > most:
            for each in kept.over(at):
                kept.remove(each)
        while kept.tokens > most:
            first = kept.gives_way(tenant)
            kept.remove(first)
            left = self._left[first]
            left.until = at
            if left.request_id is not None and left.request_id in self._in_time:
                heappush(self._in_time_until, (at, left.request_id))

    def arrived(self, request: Request, at: int) -> None:
        """The first that goes on from a context of its tenant comes back for it."""
        self._give_up(at)
        if self._left.keys().isdisjoint(request.prefix):
            return
        name = next(each for each in reversed(request.prefix) if each in self._left)
        left = self._left[name]
        if left.request_id is not None or left.agent[0] != request.tenant:
            return
        self._see(left.agent, at - left.at)
        left.request_id = request.id
        self._came_back_for[request.id] = name
        if left.until > at:
            self._in_time[request.id] = left
            heappush(self._in_time_until, (left.until, request.id))

    def gone(self, request_id: str) -> str | None:
        """It does not wait any more: dispatched, or cancelled. Returns the instance where memory
        was kept for it."""
        name = self._came_back_for.get(request_id)
        if name is None:
            return None
        left = self._left[name]
        self._forget(name)
        return left.instance_id if left.until > left.at else None

    def leave(self, instance_id: str) -> None:
        self._kept.pop(instance_id, None)
        for name in [n for n in self._left if self._left[n].instance_id == instance_id]:
            self._forget(name)

    def waiting(self, at: int) -> Iterator[str]:
        """Requests that have come back, in time, in the order in which they did."""
        for request_id, left in self._in_time.items():
            if left.until > at:
                yield request_id

    def kept_for(self, request: Request, at: int) -> tuple[str, int] | None:
        """Where memory is kept for the request, and how many tokens of its prompt."""
        name = self._came_back_for.get(request.id)
        if name is None or self._left[name].until <= at:
            return None
        left = self._left[name]
        return left.instance_id, min(left.tokens, request.prompt_tokens)

    def kept(self, instance_id: str) -> KeptContexts:
        """What memory is kept for there; of some of it, that may be over."""
        return self._kept.get(instance_id, _NOTHING)

    def _give_up(self, at: int) -> None:
        """Calls that did not come back while that would have saved more than the wait has cost; and
        those that did, and for which no memory is kept any more."""
        ends = self._in_time_until
        while ends and ends[0][0] <= at:
            request_id = heappop(ends)[1]
            if request_id in self._in_time and self._in_time[request_id].until <= at:
                del self._in_time[request_id]
        if len(ends) > 2 * len(self._in_time) + _FEW:
            ends[:] = sorted((left.until, name) for name, left in self._in_time.items())
        while self._left:
            name, left = self._left.oldest()
            if left.by > at:
                return
            if left.request_id is None:
                self._see(left.agent, math.inf)
            self._forget(name)

    def _forget(self, name: int) -> None:
        left = self._left.get(name)
        if left is not None:
            self._left.remove(left.agent[0], name)
            self._let_go(name, left)

    def _let_go(self, name: int, left: _Left) -> None:
        """It is not here any more."""
        self.kept(left.instance_id).remove(name)
        if left.request_id is not None:
            del self._came_back_for[left.request_id]
            self._in_time.pop(left.request_id, None)

    def _see(self, agent: AgentKey, gap_us: float) -> None:
        gaps = self._gaps.get(agent)
        if gaps is None:
            gaps = deque(maxlen=_WINDOW)
            self._gaps.put(agent[0], agent, gaps)
        else:
            self._gaps.touch(agent[0], agent)
        gaps.append(gap_us)


def time_to_live(gaps_us: Sequence[float], worth_us: float) -> float:
    """The best of these gaps to wait for; 0: none is worth it, or too few are known. `inf`: a call
    that did not come back. `worth_us`: how long a wait costs as much as a call that does saves."""
    n = len(gaps_us)
    if n < _FEWEST:
        return 0.0
    best = most = total = 0.0
    for k, gap in enumerate(sorted(gaps_us), 1):
        if gap == math.inf:
            break
        total += gap
        gain = k * worth_us - total - (n - k) * gap
        if gain > most:
            best, most = gap, gain
    return best
