"""Search for the pools that no other beats in cost and time, using the predictor.

Candidates are enumerated from small to large: for a model's calls (or for one of two blocks of its
agents) instances that serve both phases, or a pair; for the calls of a model that are split, two
kinds that serve both. Each is evaluated by `prediction.Predictor`, at the batch that its load
makes. Bounds keep this short, and are exact: more instances cost more, and no pool is faster than
the same kinds without load. A local search continues from each pool of the front: one instance
less, an agent elsewhere, another share, another kind in the place of one, part of the calls in
another way.

The search does not know the target: so a tighter one is never cheaper.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from kairos.capacity.pool import InstanceKind
from kairos.capacity.prediction import Prediction, Predictor
from kairos.capacity.resources import total
from kairos.capacity.serving import Phases

NEAR_IDLE = 1.001  # over the time without load: more instances gain nothing
ALL_COUNTS = 12  # of a kind, from the least on; beyond, in steps of a hundredth
STEP = 0.01
FEW_COUNTS, COARSE = 6, 0.2  # the same where two kinds are combined; the local search refines
MOST_TIMES = 16  # the least number of instances
FEW_AGENTS = 4  # of a model, of which all blocks are tried
CUTS = 6  # of more agents, by the ratio of prompt to answer
MIXED_KINDS = 16  # that serve both phases and are kept for mixtures
MIXED_SIDES = 3  # kinds for one phase that are paired for mixtures
APART = 3  # devices that a second group of agents does without
MIXED_WAYS = 14  # to serve calls that are tried together, two and two
SHARES = tuple(k / 8 for k in range(1, 8))
SLACK = 1.02  # of a mean time that is still looked at: P95 may be less where the mean is more
SHIFT = 1 / 16  # of the calls of a model, in the local search
SEARCHED, SEARCHED_ON = 400, 100  # pools, by the local search: of the front, and from each changed
MOVED_WAYS = 6  # to which part of a pool's calls is moved
SAME = 0.002  # relative: a difference that counts for nothing while pools are enumerated
EXACTLY = 1e-6  # the same in the local search

ROUNDING = 1e-9

Routes = Mapping[str, Mapping[str, float]]


class FoundPool(msgspec.Struct, frozen=True, kw_only=True):
    """Pool evaluated by the predictor."""

    counts: Mapping[str, int]
    routes: Routes
    prices: tuple[float, ...]  # to be low beside time, as `SearchLimits.prices` names them
    times: tuple[float, ...]  # P95; with the mean, where calls of other models are to follow
    prediction: Prediction

    @property
    def scores(self) -> tuple[float, ...]:
        return (*self.prices, *self.times)


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on pools."""

    most_kinds: int | None = None  # of instances, for each model
    split: bool = True  # an agent's calls may be
    # To be low beside time: USD an hour, kWh an hour. The first one leads the search.
    prices: tuple[Literal["usd", "kwh"], ...] = ("usd",)
    have: Mapping[str, float] = {}  # of devices by name, and of resources, at most
    least: bool = False  # instances that just do the work, however long workflows take


_NO_TIMES = (0.0,)


class _Front:
    """Pools that no other beats in all scores; with two scores they are sorted."""

    def __init__(self, same: float = SAME) -> None:
        self._same = same
        self.found: list[FoundPool] = []
        self._prices: list[float] = []  # of those found, ascending, where there are two scores

    def beaten(self, scores: tuple[float, ...]) -> bool:
        if len(scores) > 2:
            return any(_beats(each.scores, scores, self._same) for each in self.found)
        at = bisect_right(self._prices, scores[0] * (1 + self._same)) - 1
        return at >= 0 and self.found[at].times[0] <= scores[1] * (1 + self._same)

    def add(self, one: FoundPool) -> bool:
        scores = one.scores
        if self.beaten(scores):
            return False
        if len(scores) > 2:
            self.found = [
                each for each in self.found if not _beats(scores, each.scores, self._same)
            ]
            self.found.append(one)
            return True
        at = end = bisect_left(self._prices, scores[0] * (1 - self._same))
        while (
            at < len(self.found)
            and self._prices[at] < scores[0]
            and (self.found[at].times[0] < scores[1])
        ):
            at = end = at + 1
        while end < len(self.found) and self.found[end].times[0] >= scores[1]:
            end += 1
        self.found[at:end] = [one]
        self._prices[at:end] = [scores[0]]
        return True


def _beats(ours: tuple[float, ...], theirs: tuple[float, ...], same: float = SAME) -> bool:
    """Return whether the first is as good in all scores; of equals the earlier one wins."""
    return all(a <= b * (1 + same) for a, b in zip(ours, theirs, strict=True))


# Prices, mean seconds, and counts by kind.
_Side = tuple[tuple[float, ...], float, dict[str, int]]


def _merged(sides: Sequence[Sequence[_Side]], below: float) -> list[_Side]:
    """Return the combinations of sides that nothing clearly beats, cheapest first.

    Args:
        sides: counts of each kind, with their prices and times.
        below: what all together cost at most, by the first price.
    """
    found: list[_Side] = [((), 0.0, {})]
    for number, side in enumerate(sides):
        rest = sum(each[0][0][0] for each in sides[number + 1 :])
        both = sorted(
            (
                (tuple(map(sum, zip(p, q, strict=True))) if p else q, s + t, c | d)
                for p, s, c in found
                for q, t, d in side
                if (p[0] if p else 0.0) + q[0] + rest < below
            ),
            key=lambda each: each[:2],
        )
        found = []
        quickest = math.inf
        for each in both:
            if len(each[0]) > 1 or each[1] < quickest * SLACK:
                quickest = min(quickest, each[1])
                found.append(each)
    return found


class _Block(msgspec.Struct, frozen=True):
    """Agents of one model whose calls are served alike."""

    model: str
    agents: tuple[str, ...]


def front(predictor: Predictor, limits: SearchLimits) -> list[FoundPool]:
    """Return the front, cheapest first, each faster than the ones before; may be empty."""
    search = _Search(predictor, limits)
    models: dict[str, list[str]] = {}
    for call in predictor.problem.calls:
        models.setdefault(call.model, []).append(call.name)
    joined: list[FoundPool] | None = None
    for number, (model, agents) in enumerate(models.items(), start=1):
        search.mean_too = len(models) > 1
        found = search.of_model(model, tuple(agents))
        search.mean_too = number < len(models)
        joined = found if joined is None else search.joined(joined, found)
    if not joined:
        return []
    kept = search.improved(joined)
    return sorted(kept, key=lambda each: each.scores)


class _Search:
    def __init__(self, predictor: Predictor, limits: SearchLimits) -> None:
        self._predictor, self._limits = predictor, limits
        self._kinds = predictor.kinds
        self._problem = predictor.problem
        # Whether the mean time counts beside P95: this is not the sum of P95 of parts.
        self.mean_too = False
        self._is_timed = True  # whether faster pools are kept beside cheaper ones
        self._sides_known: dict[tuple[str, tuple[str, ...], float], list[_Side]] = {}
        # Pools that were predicted; searches from neighbouring pools meet the same ones.
        self._predicted: dict[tuple[object, ...], Prediction | None] = {}

    # One model

    def of_model(self, model: str, agents: tuple[str, ...]) -> list[FoundPool]:
        """Return pools for a model's calls only; other models' calls take no time there."""
        kinds = [kind for kind in self._kinds.values() if kind.model == model]
        whole = _Block(model, agents)
        best, useful = self._of_block(whole, kinds)
        kinds = [kind for kind in kinds if kind.name in useful]
        devices = [
            *dict.fromkeys(self._kinds[name].device for one in best.found for name in one.counts)
        ]
        for blocks in self._blocks(whole):
            few = devices[:APART] if len(agents) <= FEW_AGENTS else []
            for ours, theirs in self._served(blocks, kinds, few):
                for each in self.joined(ours, theirs):
                    best.add(each)
        if self._limits.split:
            self._split(best, whole, kinds)
        return best.found

    def _served(
        self, blocks: tuple[_Block, _Block], kinds: Sequence[InstanceKind], devices: Sequence[str]
    ) -> Iterator[tuple[list[FoundPool], list[FoundPool]]]:
        """Yield pools for two blocks.

        Calls of both meet if both are on the same kind of instance. So each block is also served
        without some device, which the other block then has for itself.
        """
        first, second = (self._of_block(block, kinds)[0].found for block in blocks)
        yield first, second
        for device in devices:
            others = [kind for kind in kinds if kind.device != device]
            yield self._of_block(blocks[0], others)[0].found, second
            yield first, self._of_block(blocks[1], others)[0].found

    def _blocks(self, whole: _Block) -> Iterator[tuple[_Block, _Block]]:
        """Yield ways to serve some agents differently from the others."""
        agents = whole.agents
        if len(agents) <= FEW_AGENTS:
            for count in range(1, len(agents)):
                for some in combinations(agents[1:], count):
                    rest = tuple(each for each in agents if each not in some)
                    yield _Block(whole.model, rest), _Block(whole.model, some)
            return
        calls = self._predictor.calls
        by_ratio = sorted(
            agents,
            key=lambda name: (calls[name].shape.new / max(calls[name].shape.answer, 1.0), name),
        )
        step = max(1, len(agents) // CUTS)
        for cut in range(step, len(agents), step):
            yield (
                _Block(whole.model, tuple(by_ratio[:cut])),
                _Block(whole.model, tuple(by_ratio[cut:])),
            )

    def _of_block(self, block: _Block, kinds: Sequence[InstanceKind]) -> tuple[_Front, set[str]]:
        """Serve a block's calls in one way. Return the pools, and the useful kinds."""
        found, useful = _Front(), set[str]()
        by_phases = {
            phases: sorted((kind for kind in kinds if kind.phases is phases), key=self._price)
            for phases in Phases
        }
        for kind in by_phases[Phases.BOTH]:
            routes = {agent: {kind.name: 1.0} for agent in block.agents}
            idle = self._idle(routes)
            if idle is None:
                continue
            for count in self._counts(kind, routes):
                if found.beaten((*self._prices({kind.name: count}), *idle)):
                    break
                self._try(found, {kind.name: count}, routes)
        sides = [
            self._sides(block, by_phases[phases]) for phases in (Phases.PREFILL, Phases.DECODE)
        ]
        useful |= {name for side in sides for _, _, name, _ in side}
        pairs = sorted(
            (self._prices({p: n, d: m}), slow_p + slow_d, p, n, d, m)
            for _, slow_p, p, n in sides[0]
            for _, slow_d, d, m in sides[1]
        )
        quickest = math.inf
        for prices, slow, p, n, d, m in pairs:
            # Of pairs in order of cost, those that are quicker in the mean than all before.
            if len(prices) == 1 and slow >= quickest * 1.02:
                continue
            quickest = min(quickest, slow)
            self._try(found, {p: n, d: m}, {agent: {p: 1.0, d: 1.0} for agent in block.agents})
        useful |= {name for each in found.found for name in each.counts}
        useful |= self._cheap(block, by_phases[Phases.BOTH])
        return found, useful

    def _cheap(self, block: _Block, kinds: Sequence[InstanceKind]) -> set[str]:
        """Return kinds for whole calls that are cheap by their work, or cheap by the piece."""
        worth: list[tuple[float, str]] = []
        for kind in kinds:
            need = self._need(kind, {agent: {kind.name: 1.0} for agent in block.agents})
            if need is not None:
                worth.append((need * self._price(kind), kind.name))
        by_work = [name for _, name in sorted(worth)]
        able = set(by_work)
        by_piece = [kind.name for kind in kinds if kind.name in able]  # they ascend by price
        return {*by_work[: MIXED_KINDS // 2], *by_piece[: MIXED_KINDS // 2]}

    def _sides(
        self, block: _Block, kinds: Sequence[InstanceKind]
    ) -> list[tuple[tuple[float, ...], float, str, int]]:
        """Return numbers of instances for one phase that nothing beats in price and mean time."""
        found: list[tuple[tuple[float, ...], float, str, int]] = []
        for kind in kinds:
            routes = {agent: {kind.name: 1.0} for agent in block.agents}
            idle = self._mean_s(kind, routes, UNBOUNDED)
            if idle is None:
                continue
            for count in self._counts(kind, routes):
                prices = self._prices({kind.name: count})
                if any(_beats((*p, s), (*prices, idle)) for p, s, _, _ in found):
                    break
                slow = self._mean_s(kind, routes, count)
                if slow is None or any(_beats((*p, s), (*prices, slow)) for p, s, _, _ in found):
                    continue
                found = [each for each in found if not _beats((*prices, slow), (*each[0], each[1]))]
                found.append((prices, slow, kind.name, count))
        return found

    def _mean_s(self, kind: InstanceKind, routes: Routes, count: int) -> float | None:
        state = self._predictor.state(kind.name, count, routes)
        return None if state is None else self._predictor.part_mean_s(kind.name, state, routes)

    def _need(self, kind: InstanceKind, routes: Routes) -> float | None:
        """Return the work in instances. None: the kind cannot serve these calls at all."""
        state = self._predictor.state(kind.name, UNBOUNDED, routes)
        return None if state is None else state.utilisation * UNBOUNDED

    def _counts(
        self, kind: InstanceKind, routes: Routes, singly: int = ALL_COUNTS, step: float = STEP
    ) -> Iterator[int]:
        """Yield numbers of instances, from the least that sustain the load to as many as help."""
        need, idle = self._need(kind, routes), self._mean_s(kind, routes, UNBOUNDED)
        if need is None or idle is None:
            return
        least = count = max(1, math.ceil(need * (1 - ROUNDING)))
        most = min(kind.most, least * MOST_TIMES, self._affordable(kind))
        while count <= most:
            slow = self._mean_s(kind, routes, count)
            if slow is not None:
                yield count
                if slow <= idle * NEAR_IDLE or self._limits.least:
                    return
            count += 1 if count < least + singly else max(1, round(count * step))

    def _affordable(self, kind: InstanceKind) -> float:
        """Return how many instances of a kind there can be at the most."""
        have = self._limits.have
        able = [have[n] / amount for n, amount in kind.needs.items() if n in have and amount]
        return math.floor(min(able) + ROUNDING) if able else math.inf

    # Calls that are split

    def _split(self, best: _Front, whole: _Block, kinds: Sequence[InstanceKind]) -> None:
        """Serve all calls of a model in two ways at once, in several shares."""
        quickest: dict[tuple[str, ...], tuple[float, ...]] = {}
        for way in self._ways(best, whole, kinds):
            quick = self._idle({agent: dict.fromkeys(way, 1.0) for agent in whole.agents})
            if quick is not None:
                quickest[way] = quick
        most = self._limits.most_kinds or math.inf
        for a, b in combinations(quickest, 2):
            if set(a) & set(b) or len(a) + len(b) > most:
                continue
            bound = tuple(map(min, quickest[a], quickest[b]))
            for share in SHARES:
                shares = dict.fromkeys(a, share) | dict.fromkeys(b, 1 - share)
                self._split_so(best, whole, shares, bound)

    def _split_so(
        self, best: _Front, whole: _Block, shares: Mapping[str, float], bound: tuple[float, ...]
    ) -> None:
        least = self._least(whole, shares)
        if least is None or best.beaten((*self._prices(least), *bound)):
            return
        routes = dict.fromkeys(whole.agents, shares)
        quick = self._idle(routes)
        if quick is None or best.beaten((*self._prices(least), *quick)):
            return
        sides = [self._side(self._kinds[name], whole, shares[name]) for name in shares]
        if not all(sides):
            return
        below = min((e.prices[0] for e in best.found if _beats(e.times, quick)), default=math.inf)
        for prices, _, counts in _merged(sides, below):
            if not best.beaten((*prices, *quick)):
                self._try(best, counts, routes)

    def _least(self, block: _Block, shares: Mapping[str, float]) -> dict[str, int] | None:
        """Return the least instances that sustain the load. None: some kind cannot."""
        found: dict[str, int] = {}
        for name, share in shares.items():
            need = self._need(self._kinds[name], {agent: {name: 1.0} for agent in block.agents})
            if need is None:
                return None
            found[name] = max(1, math.ceil(need * share * (1 - ROUNDING)))
        return found

    def _ways(
        self, best: _Front, whole: _Block, kinds: Sequence[InstanceKind]
    ) -> list[tuple[str, ...]]:
        """Return ways worth combining: the front's, and cheap kinds for whole calls."""
        found: dict[tuple[str, ...], float] = {}
        for each in best.found:
            for shares in each.routes.values():
                way = tuple(sorted(name for name, share in shares.items() if share))
                if _one_way(way, self._kinds):
                    found.setdefault(way, 0.0)
        for way, price in self._prices_of_ways(whole, kinds).items():
            if len(way) == 1:
                found[way] = price
            else:
                found.setdefault(way, price)
        return sorted(found, key=lambda way: (found[way], way))[:MIXED_WAYS]

    def _prices_of_ways(
        self, block: _Block, kinds: Sequence[InstanceKind]
    ) -> dict[tuple[str, ...], float]:
        """Return ways to serve a block, each with the price of its work."""
        found: dict[tuple[str, ...], float] = {}
        for kind in kinds:
            if kind.phases is Phases.BOTH:
                need = self._need(kind, {agent: {kind.name: 1.0} for agent in block.agents})
                if need is not None:
                    found[kind.name,] = need * self._price(kind)
        return found | dict(self._pairs(block, kinds))

    def _pairs(
        self, whole: _Block, kinds: Sequence[InstanceKind]
    ) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield pairs of sides that are cheap by their work, with its price."""
        cheap: dict[Phases, list[tuple[float, str]]] = {}
        for kind in kinds:
            need = self._need(kind, {agent: {kind.name: 1.0} for agent in whole.agents})
            if need is not None:
                cheap.setdefault(kind.phases, []).append((need * self._price(kind), kind.name))
        for price, prefill in sorted(cheap.get(Phases.PREFILL, ()))[:MIXED_SIDES]:
            for more, decode in sorted(cheap.get(Phases.DECODE, ()))[:MIXED_SIDES]:
                yield tuple(sorted((prefill, decode))), price + more

    def _side(self, kind: InstanceKind, block: _Block, share: float) -> list[_Side]:
        """Return numbers of one kind's instances for a share of a block's calls, cheapest first."""
        key = kind.name, block.agents, share
        if key not in self._sides_known:
            routes = {agent: {kind.name: share} for agent in block.agents}
            self._sides_known[key] = [
                (self._prices({kind.name: count}), share * slow, {kind.name: count})
                for count in self._counts(kind, routes, FEW_COUNTS, COARSE)
                if (slow := self._mean_s(kind, routes, count)) is not None
            ]
        return self._sides_known[key]

    # Together

    def joined(self, ours: Sequence[FoundPool], theirs: Sequence[FoundPool]) -> list[FoundPool]:
        """Return the combinations of pools for different calls that nothing beats."""
        pairs = sorted(
            (
                (
                    tuple(a + b for a, b in zip(one.prices, other.prices, strict=True)),
                    tuple(
                        map(max, self._times_of(one.prediction), self._times_of(other.prediction))
                    ),
                    number_a,
                    number_b,
                )
                for number_a, one in enumerate(ours)
                for number_b, other in enumerate(theirs)
            )
        )
        best = _Front()
        for prices, bound, number_a, number_b in pairs:
            if best.beaten((*prices, *bound)):
                continue
            one, other = ours[number_a], theirs[number_b]
            counts = dict(one.counts)
            for name, count in other.counts.items():
                counts[name] = counts.get(name, 0) + count
            self._try(best, counts, {**one.routes, **other.routes})
        return best.found

    def improved(self, found: Sequence[FoundPool]) -> list[FoundPool]:
        """Search on from each pool of the front, and tell pools apart that differ by less.

        Where workflows may take any time, only cheaper pools are looked for.
        """
        if self._limits.least:
            self._is_timed = False
            found = [msgspec.structs.replace(one, times=_NO_TIMES) for one in found]
        best = _Front(EXACTLY)
        for each in sorted(found, key=lambda each: each.scores):
            best.add(each)
        self._search_from(best, [*best.found], SEARCHED)
        for one in sorted(best.found, key=lambda each: each.scores):
            better = self._try_all(best, self._otherwise(one))
            self._search_from(best, better, SEARCHED_ON)
        return best.found

    def _otherwise(self, one: FoundPool) -> Iterator[tuple[dict[str, int], Routes]]:
        """Yield pools with another kind in the place of one, and with part of the calls moved."""
        for name, count in one.counts.items():
            for other in self._kinds.values():
                here = self._kinds[name]
                alike = other.model == here.model and other.phases is here.phases
                if alike and other.name not in one.counts:
                    routes = {
                        agent: {other.name if each == name else each: s for each, s in way.items()}
                        for agent, way in one.routes.items()
                    }
                    need = self._need(other, routes)
                    counts = {each: n for each, n in one.counts.items() if each != name}
                    for number in {count, *([] if need is None else [math.ceil(need)])}:
                        yield {**counts, other.name: number}, routes
        for agents in _served_alike(one):
            yield from self._partly_moved(one, tuple(agents))

    def _partly_moved(
        self, one: FoundPool, agents: tuple[str, ...]
    ) -> Iterator[tuple[dict[str, int], Routes]]:
        """Yield pools where agents that are served in one way are served in two."""
        here = tuple(name for name, share in one.routes[agents[0]].items() if share)
        if not self._limits.split or not _one_way(here, self._kinds):
            return
        model = self._predictor.calls[agents[0]].model
        kinds = [kind for kind in self._kinds.values() if kind.model == model]
        prices = self._prices_of_ways(_Block(model, agents), kinds)
        for way in sorted(prices, key=lambda way: (prices[way], way))[:MOVED_WAYS]:
            if set(way) & set(here):
                continue
            for share in (0.25, 0.5, 0.75):
                shares = dict.fromkeys(here, 1 - share) | dict.fromkeys(way, share)
                routes: Routes = {**one.routes, **dict.fromkeys(agents, shares)}
                needs = {name: self._need(self._kinds[name], routes) for name in (*here, *way)}
                room = min(
                    one.counts[name] / (needs[name] or math.inf) * (1 - share) for name in here
                )
                for more in (1.0, room):
                    least = {n: max(1, math.ceil((need or 0) * more)) for n, need in needs.items()}
                    yield {**one.counts, **least}, routes

    def _search_from(self, best: _Front, waiting: list[FoundPool], most: int) -> None:
        """Search from pools, and on from the better ones that are found."""
        searched = 0
        while waiting and searched < most:
            one = waiting.pop(0)
            if one in best.found:
                searched += 1
                near = _neighbours(one, self._kinds, self._predictor, self._limits)
                waiting += self._try_all(best, near)

    def _try_all(
        self, best: _Front, pools: Iterable[tuple[Mapping[str, int], Routes]]
    ) -> list[FoundPool]:
        """Evaluate pools; return each that no other beat when it came."""
        tried = (self._try(best, counts, routes) for counts, routes in pools)
        return [one for one in tried if one is not None]

    def _try(self, best: _Front, counts: Mapping[str, int], routes: Routes) -> FoundPool | None:
        """Evaluate a pool. Return it if no other beats it."""
        if not self._allowed(counts):
            return None
        prediction = self._predict(counts, routes)
        if prediction is None:
            return None
        one = FoundPool(
            counts=counts,
            routes=routes,
            prices=self._prices(counts),
            times=self._times_of(prediction),
            prediction=prediction,
        )
        return one if best.add(one) else None

    def _predict(self, counts: Mapping[str, int], routes: Routes) -> Prediction | None:
        shares = ((agent, *sorted(way.items())) for agent, way in routes.items())
        key = (*sorted(counts.items()), *sorted(shares))
        if key not in self._predicted:
            self._predicted[key] = self._predictor.predicted(counts, routes)
        return self._predicted[key]

    def _allowed(self, counts: Mapping[str, int]) -> bool:
        kinds: dict[str, int] = {}
        for name, count in counts.items():
            kind = self._kinds[name]
            if count > kind.most:
                return False
            kinds[kind.model] = kinds.get(kind.model, 0) + 1
        most = self._limits.most_kinds
        if most is not None and max(kinds.values()) > most:
            return False
        have = self._limits.have
        used = total((count, self._kinds[name].needs) for name, count in counts.items() if have)
        return all(used.get(name, 0.0) <= amount + ROUNDING for name, amount in have.items())

    def _prices(self, counts: Mapping[str, int]) -> tuple[float, ...]:
        return tuple(
            sum(self._price(self._kinds[name], which) * count for name, count in counts.items())
            for which in self._limits.prices
        )

    def _price(self, kind: InstanceKind, which: str = "") -> float:
        """Return one price of an instance; without a name the one that leads."""
        leads = which or self._limits.prices[0]
        return kind.usd_per_hour if leads == "usd" else kind.kwh_per_hour

    def _times_of(self, found: Prediction) -> tuple[float, ...]:
        if not self._is_timed:
            return _NO_TIMES
        return (found.p95_s, found.mean_s) if self.mean_too else (found.p95_s,)

    def _idle(self, routes: Routes) -> tuple[float, ...] | None:
        """Return the times without load, which are lower bounds for any number of instances."""
        counts = {name: UNBOUNDED for shares in routes.values() for name in shares}
        found = self._predictor.predicted(counts, routes)
        return None if found is None else self._times_of(found)


UNBOUNDED = 10**7  # instances: as good as no load


def _neighbours(
    one: FoundPool, kinds: Mapping[str, InstanceKind], predictor: Predictor, limits: SearchLimits
) -> Iterator[tuple[dict[str, int], Routes]]:
    """Yield pools that differ in one property."""
    for name, count in one.counts.items():
        yield {**one.counts, name: count + 1}, one.routes
        if count == 1:
            continue
        fewer = {**one.counts, name: count - 1}
        yield fewer, one.routes
        for other in one.counts:
            if other != name:
                yield {**fewer, other: fewer[other] + 1}, one.routes
    for agents in _served_alike(one):
        model = predictor.calls[agents[0]].model
        here = one.routes[agents[0]]
        ways = {
            tuple(sorted(name for name, share in shares.items() if share))
            for agent, shares in one.routes.items()
            if predictor.calls[agent].model == model
        }
        for agent in agents if len(agents) > 1 else ():
            for way in sorted(ways - {tuple(sorted(here))}):
                routes: Routes = {**one.routes, agent: dict.fromkeys(way, 1.0)}
                if _one_way(way, kinds):
                    yield _used(one.counts, routes), routes
        for routes in _shifted(one, agents, kinds, limits):
            yield _used(one.counts, routes), routes


def _shifted(
    one: FoundPool, agents: Sequence[str], kinds: Mapping[str, InstanceKind], limits: SearchLimits
) -> Iterator[Routes]:
    """Yield routes with a larger share for one of two ways, and with one way only."""
    here = one.routes[agents[0]]
    whole = [name for name in here if kinds[name].phases is Phases.BOTH]
    pair = [name for name in here if kinds[name].phases is not Phases.BOTH]
    ways = [(name,) for name in whole] + [tuple(pair)] * (len(pair) == 2)
    if len(ways) != 2:
        return
    for a, b in (ways, ways[::-1]):
        yield {**one.routes, **dict.fromkeys(agents, dict.fromkeys(a, 1.0))}
        share = here[a[0]] + SHIFT
        if share < 1 and limits.split:
            shares = dict.fromkeys(a, share) | dict.fromkeys(b, 1 - share)
            yield {**one.routes, **dict.fromkeys(agents, shares)}


def _one_way(way: Sequence[str], kinds: Mapping[str, InstanceKind]) -> bool:
    phases = sorted(kinds[name].phases for name in way)
    return phases in ([Phases.BOTH], [Phases.DECODE, Phases.PREFILL])


def _served_alike(one: FoundPool) -> list[list[str]]:
    by_route: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for agent, shares in one.routes.items():
        by_route.setdefault(tuple(sorted(shares.items())), []).append(agent)
    return list(by_route.values())


def _used(counts: Mapping[str, int], routes: Routes) -> dict[str, int]:
    there = {name for shares in routes.values() for name, share in shares.items() if share}
    return {name: count for name, count in counts.items() if name in there}
