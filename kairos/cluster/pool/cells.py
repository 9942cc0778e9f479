"""The choice between several pools (cells), by workflow.

A gateway over several pools sends all calls of a workflow to one of them. The choice is a function
of what every gateway sees, so that gateways agree without talking: the workflow's tenant and id,
the pools of the settings with their numbers of engines, and which of them can serve the call now.
Weighted rendezvous hashing (Thaler and Ravishankar, 1998; weights by the logarithm): a pool that
goes away, or comes back, moves the workflows that it has, and no others. Not in the paper.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf, log

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kairos.core import SECOND, Event, InstanceJoined, InstanceLeft, Request, text_digest
from kairos.observe import counter, gauge
from kairos.settings import EngineSettings

# A pool's balancer sends an order, if only an empty one, twice a second. A pool without one for so
# long is away.
AWAY_US = 10 * SECOND
_MASK = (1 << 64) - 1


class Cells(Collector):
    """Pools of one gateway, which of them can serve, and the choice between them.

    With one pool, that is always the choice.
    """

    def __init__(self, pools: Sequence[str], now: Callable[[], int]) -> None:
        """Take the names of the pools, at least one, and the clock (µs)."""
        self.pools = tuple(pools)
        self._now = now
        self._salts = {pool: text_digest(pool) for pool in pools}
        self._weights: Mapping[str, int] = dict.fromkeys(pools, 1)
        self._pool_of: Mapping[str, str] = {}  # by instance id
        self._models: dict[str, tuple[str, ...]] = {}  # that each instance serves now
        self._serving: dict[str, Counter[str]] = {}  # instances in each pool, by model
        self._heard_at = dict.fromkeys(pools, now())
        self._chosen: Counter[str] = Counter()

    def follow(self, engines: Iterable[EngineSettings], draining: Collection[str]) -> None:
        engines = [each for each in engines if each.pool in self._salts]
        self._pool_of = {each.id: each.pool for each in engines if each.pool is not None}
        self._weights = Counter(
            self._pool_of[each.id] for each in engines if each.id not in draining
        )
        self._count()

    def hear(self, event: Event) -> None:
        if isinstance(event, InstanceJoined):
            instance = event.instance
            self._models[instance.id] = instance.models if instance.phase != "prefill" else ()
        elif isinstance(event, InstanceLeft):
            self._models.pop(event.instance_id, None)
        else:
            return
        self._count()

    def hear_balancer(self, pool: str) -> None:
        self._heard_at[pool] = self._now()

    def is_away(self, pool: str) -> bool:
        """Return whether the pool's balancer has been silent for too long."""
        return self._now() - self._heard_at[pool] >= AWAY_US

    def choose(self, request: Request) -> str:
        """Return the pool for a call, and count the call there."""
        pool = self.pools[0]
        if len(self.pools) > 1:
            key = _key(request.tenant, request.workflow_id)
            pool = self._first(key, self._candidates(request.model))
        self._chosen[pool] += 1
        return pool

    def pools_of(self, tenant: str, workflow_id: str) -> list[str]:
        """Return the pools that may have calls of the workflow.

        These are the choices for each model, as it is now and as if no pool were away.
        """
        if len(self.pools) == 1:
            return list(self.pools)
        key = _key(tenant, workflow_id)
        among: list[Collection[str]] = [self.pools, self._present(self.pools)]
        for model, serving in self._serving.items():
            among += [serving, self._candidates(model)]
        return list(dict.fromkeys(self._first(key, each) for each in among if each))

    def collect(self) -> Iterator[Metric]:
        serving = Counter(self._pool_of[each] for each in self._models if each in self._pool_of)
        up = {each: 0 if self.is_away(each) else 1 for each in self.pools}
        calls = {each: self._chosen[each] for each in self.pools}
        instances = {each: serving[each] for each in self.pools}
        said = "1: the pool's balancer sends orders; 0: it is away"
        yield gauge("kairos_cell_up", said, up, "pool")
        said = "Calls that were sent to the pool's balancer"
        yield counter("kairos_cell_calls", said, calls, "pool")
        said = "Instances of the pool that serve"
        yield gauge("kairos_cell_instances", said, instances, "pool")

    def _candidates(self, model: str | None) -> Collection[str]:
        """Return the pools that can serve a call for the model now.

        A balancer that is away for every pool is a bus that is away: then all are candidates. So
        are they for a model that none serves: the balancer says so.
        """
        serving: Collection[str] = () if model is None else self._serving.get(model, ())
        return self._present(serving) or serving or self._present(self.pools) or self.pools

    def _present(self, pools: Collection[str]) -> list[str]:
        return [pool for pool in pools if not self.is_away(pool)]

    def _first(self, key: int, among: Collection[str]) -> str:
        return min(among, key=lambda pool: self._rank(key, pool))

    def _rank(self, key: int, pool: str) -> float:
        """Return the workflow's rank of the pool: the lowest is chosen."""
        weight = self._weights.get(pool, 0)
        if not weight:
            return inf
        return -log((_mixed(key ^ self._salts[pool]) + 0.5) / 2**64) / weight

    def _count(self) -> None:
        self._serving = {}
        for instance_id, models in self._models.items():
            if (pool := self._pool_of.get(instance_id)) is not None:
                for model in models:
                    self._serving.setdefault(model, Counter())[pool] += 1


def _key(tenant: str, workflow_id: str) -> int:
    return text_digest(f"{tenant}\0{workflow_id}")


def _mixed(bits: int) -> int:
    """Return 64 bits that depend on all of 64 bits evenly (Steele et al., 2014: SplitMix64)."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
