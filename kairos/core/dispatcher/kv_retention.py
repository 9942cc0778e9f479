"""Retention of cached contexts for calls that are likely to come back. Not in the paper.

When a call has ended, its instance still has its context in the prefix cache, and an agent's next
call often begins with all of it. In a full pool other calls would use that memory at once; so it is
left free for a while, if that pays: a time to live, as engines have it in Continuum (Li et al.,
2025), here applied from outside, by what the dispatcher leaves free.

The time to live is learnt by agent. Retaining a context costs its share of the memory for that
time; when its next call comes, the time to compute the context is saved, if it would have been lost
otherwise. So from the observed gaps between a call and its continuation, and with `fill_us`, the
time to compute as many tokens as the memory has, the best time to live is the `t` that maximises

    P(gap <= t) * LOST * fill_us - E[min(gap, t)],

for any size of the context. No more is retained on an instance than its memory can hold: what was
left first is what its engine drops first. Among several tenants, the one with most retained tokens
loses first.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from kairos.core.agent_key import AgentKey, agent_key_of
from kairos.core.dispatcher.demand import SLOT_AT_US, SLOTS, Floats
from kairos.core.dispatcher.native import address
from kairos.core.model import Instance, Request
from kairos.core.shared_lru import SharedLru

_NO_BOUND = 1 << 62


LOST = 0.5  # share of contexts lost without retention; the others are still cached
_WINDOW = 64  # gaps stored per agent
_FEWEST = 8  # gaps needed for a time to live
_MAX_AGENTS = 5_000
_MAX_LEFT = 20_000  # contexts that calls may come back for
_FEW = 64  # dead entries of a heap that are tolerated in addition to as many as are alive


class KeptContexts:
    """Table with a row per retained context, unordered. Times in µs, sizes in tokens."""

    def __init__(self) -> None:
        self._names: list[int] = []
        self._row_of: dict[int, int] = {}
        # Tenant and tokens by name; longest retained first.
        self._tenants: SharedLru[int, str] = SharedLru(_NO_BOUND)
        self._values = np.zeros((2, 8))  # tokens; until when
        self._find_columns()
        self.tokens = 0  # sum over all contexts

    def __len__(self) -> int:
        return len(self._names)

    def add(self, tenant: str, name: int, tokens: int, until: int) -> None:
        row = len(self._names)
        if row == self._values.shape[1]:
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
            self._find_columns()
        self._names.append(name)
        self._row_of[name] = row
        self._tenants.put(tenant, name, tenant, tokens)
        self._cells[row], self._cells[self._stride + row] = tokens, until
        self.tokens += tokens

    def _find_columns(self) -> None:
        stride = self._stride = self._values.shape[1]
        # The same numbers for access one at a time, tokens first: numpy takes ten times as long.
        self._cells = self._values.ravel().data.cast("B").cast("d")
        # For the kernel: address of the columns, and their distance.
        self.columns = address(self._values), stride

    def remove(self, name: int) -> None:
        """Remove a context; a no-op if the name is unknown."""
        row = self._row_of.pop(name, None)
        if row is None:
            return
        cells, stride = self._cells, self._stride
        self.tokens -= int(cells[row])
        self._tenants.remove(self._tenants[name], name)
        last = len(self._names) - 1
        moved = self._names.pop()
        if row != last:
            self._names[row] = moved
            self._row_of[moved] = row
            cells[row], cells[stride + row] = cells[last], cells[stride + last]
        cells[stride + last] = 0.0  # for the kernel, which reads whole columns

    def over(self, at: int) -> list[int]:
        """Return the names of contexts whose retention has expired."""
        rows = np.flatnonzero(self._values[1, : len(self)] <= at)
        return [self._names[row] for row in rows.tolist()]

    def gives_way(self, tenant: str) -> int:
        """Return the name of the context to evict for something of the tenant's.

        That is the longest retained one of the tenant with most retained tokens.
        """
        return next(iter(self._tenants.of(self._tenants.gives_way(tenant))))

    def by_slot(self, at: int) -> Floats:
        """Return the tokens retained at the beginning of each slot."""
        tokens, until = self._values[:, : len(self)]
        slots = np.searchsorted(SLOT_AT_US, until - at)
        begun = np.bincount(slots, weights=tokens, minlength=SLOTS + 1)
        kept: Floats = begun[::-1].cumsum()[-2::-1]
        return kept


_NOTHING = KeptContexts()


class _Left:
    """Context that a call left behind."""

    request_id: str | None = None  # the waiting call that came back for it

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
        self.until = until  # end of its retention
        self.by = by  # after that, its call counts as not coming back


class KvRetention:
    """Contexts that calls may come back for, and the memory retained for them.

    A context is named by the last stretch of its call's prompt, which a prompt that continues it
    contains, too.
    """

    def __init__(self) -> None:
        self._left: SharedLru[int, _Left] = SharedLru(_MAX_LEFT)  # by name, oldest first
        self._kept: dict[str, KeptContexts] = {}  # the retained ones, by instance
        self._came_back_for: dict[str, int] = {}  # name of the context, by request id
        # Requests that found their context retained when they arrived, in order of arrival.
        self._in_time: OrderedDict[str, _Left] = OrderedDict()
        # Heap of the ends of their retention; some entries are outdated.
        self._in_time_until: list[tuple[int, str]] = []
        self._gaps: SharedLru[AgentKey, deque[float]] = SharedLru(_MAX_AGENTS)

    def retain_context(
        self, request: Request, instance: Instance, tokens: int, fill_us: float, at: int
    ) -> None:
        """Record the context that an ended call left, and retain it if that pays.

        `tokens`: size of the context. `fill_us`: time to compute as many tokens as the instance's
        memory has.
        """
        self._give_up(at)
        if not request.prefix:
            return
        name, agent = request.prefix[-1], agent_key_of(request)
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

    def assign_context(self, request: Request, at: int) -> None:
        """Assign an arriving request the context that it continues, if it is the first to do so."""
        self._give_up(at)
        if self._left.keys().isdisjoint(request.prefix):
            return
        name = next(each for each in reversed(request.prefix) if each in self._left)
        left = self._left[name]
        if left.request_id is not None or left.agent[0] != request.tenant:
            return
        self._record_gap(left.agent, at - left.at)
        left.request_id = request.id
        self._came_back_for[request.id] = name
        if left.until > at:
            self._in_time[request.id] = left
            heappush(self._in_time_until, (left.until, request.id))

    def release_context(self, request_id: str) -> str | None:
        """Record that a request no longer waits, because it was dispatched or cancelled.

        Returns:
            The instance where memory was retained for it, if any.
        """
        name = self._came_back_for.get(request_id)
        if name is None:
            return None
        left = self._left[name]
        self._forget(name)
        return left.instance_id if left.until > left.at else None

    def forget_instance(self, instance_id: str) -> None:
        self._kept.pop(instance_id, None)
        for name in [n for n in self._left if self._left[n].instance_id == instance_id]:
            self._forget(name)

    def waiting(self, at: int) -> Iterator[str]:
        """Yield the requests for which memory is retained, in order of their arrival."""
        for request_id, left in self._in_time.items():
            if left.until > at:
                yield request_id

    def kept_for(self, request: Request, at: int) -> tuple[str, int] | None:
        """Return where memory is retained for the request, and for how many prompt tokens."""
        name = self._came_back_for.get(request.id)
        if name is None or self._left[name].until <= at:
            return None
        left = self._left[name]
        return left.instance_id, min(left.tokens, request.prompt_tokens)

    def kept(self, instance_id: str) -> KeptContexts:
        """Return the contexts retained on an instance; some may have expired."""
        return self._kept.get(instance_id, _NOTHING)

    def _give_up(self, at: int) -> None:
        """Drop contexts whose call did not come back in time to save more than the wait cost.

        Also drop waiting requests from `_in_time` once the retention of their context has ended.
        """
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
                self._record_gap(left.agent, math.inf)
            self._forget(name)

    def _forget(self, name: int) -> None:
        left = self._left.get(name)
        if left is not None:
            self._left.remove(left.agent[0], name)
            self._let_go(name, left)

    def _let_go(self, name: int, left: _Left) -> None:
        """Release what belongs to a context that was dropped."""
        self.kept(left.instance_id).remove(name)
        if left.request_id is not None:
            del self._came_back_for[left.request_id]
            self._in_time.pop(left.request_id, None)

    def _record_gap(self, agent: AgentKey, gap_us: float) -> None:
        gaps = self._gaps.get(agent)
        if gaps is None:
            gaps = deque(maxlen=_WINDOW)
            self._gaps.put(agent[0], agent, gaps)
        else:
            self._gaps.touch(agent[0], agent)
        gaps.append(gap_us)


def time_to_live(gaps_us: Sequence[float], worth_us: float) -> float:
    """Return the best of these gaps to wait for; 0 if none pays or too few are known.

    Args:
        gaps_us: observed gaps; `inf`: the call did not come back.
        worth_us: length of a wait that costs as much as a returning call saves.
    """
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
