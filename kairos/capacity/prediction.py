"""Predict how long workflows take on a pool: with its load, its queues, and their own lengths.

Each kind of instance is looked at in its steady state. By Little's law as many calls decode at once
as arrive while one does, and with each token as many prompts are computed as arrive in its time.
The time of a token depends on both, so it is a fixed point. Calls wait for half a step, and for a
place in a batch as in M/M/c (`queueing.py`); prompts on instances for prefill alone as in M/G/c.

A workflow's time is its critical path: each call begins when those before it have ended, after
tools and people. Calls that are split over several kinds are dealt out evenly by their shares, in
several ways for each workflow, so percentiles have what the slower kind adds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import transfer_s
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.pool import InstanceKind, PoolProblem
from kairos.capacity.queueing import mean_wait_s
from kairos.capacity.serving import NO_TARGETS, LatencyTargets, Phases, use
from kairos.core import CallShape, StepCost

ITERATIONS = 2_000  # of the fixed point; it grows towards it from below
CLOSE = 1e-6  # to the step before, relative
LONGEST_S = 60.0  # that a token may take
NUDGE = 0.05  # relative, to see how a step grows
MOST_PULL, MOST_SPREAD = 0.97, 0.6
MOST_TIMES = 1e9  # the load that is looked at
NEAR = 0.002  # of a load, relative
MOST_BYTES = 64 * 2**20  # of arrays that are kept
DEALS = 8  # ways in which the calls of each workflow are dealt out to several kinds
GOLDEN, PLASTIC = 0.6180339887498949, 0.7548776662466927  # steps of even sequences, in one and two

Array = Any  # of numpy
# Of a normal distribution, a level for each deal.
LEVELS: Array = np.array([NormalDist().inv_cdf((deal + 0.5) / DEALS) for deal in range(DEALS)])
Shares = Mapping[str, Mapping[str, float]]  # agent -> kind of instance -> share of its calls


class LoadedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """State of one kind of instance under its load."""

    wait_s: float  # of a call, before anything is computed of it
    tpot_s: float
    batch: float  # that decode at once on one instance
    utilisation: float  # of what it could do at its largest batch
    context: float = 0.0  # that a step reads of a sequence, in the mean
    spread: float = 0.0  # of the time of a token over calls: deviation over mean


IDLE = LoadedInstance(wait_s=0.0, tpot_s=0.0, batch=0.0, utilisation=0.0)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that one kind of instance serves."""

    shape: CallShape
    per_s: float


class _Mean:
    """A call of some traffic, in the mean."""

    def __init__(self, traffic: Sequence[Traffic]) -> None:
        self.per_s = sum(each.per_s for each in traffic)

        def mean(value: Callable[[CallShape], float]) -> float:
            return sum(each.per_s * value(each.shape) for each in traffic) / self.per_s

        self.new = mean(lambda shape: shape.new)
        self.cached = mean(lambda shape: shape.cached)
        self.pairs = mean(lambda shape: StepCost.attended_pairs(shape.new, shape.cached))
        self.together = mean(lambda shape: shape.together)
        self.answer = mean(lambda shape: max(shape.answer, 1.0))
        square = mean(lambda shape: shape.new**2 * (1 + shape.new_cv2))
        self.new_cv2 = square / self.new**2 - 1 if self.new else 0.0
        # That a step reads of a sequence: those with long answers are there for longer.
        read = mean(lambda shape: max(shape.answer, 1.0) * shape.context)
        self.context = read / self.answer


def loaded(kind: InstanceKind, count: int, traffic: Sequence[Traffic]) -> LoadedInstance | None:
    """Return the steady state of `count` instances. None: they have too much to do."""
    if not count or not any(each.per_s for each in traffic):
        return IDLE
    if kind.phases is Phases.PREFILL:
        return _prefilling(kind, count, traffic)
    return _decoding(kind, count, _Mean(traffic))


def _prefilling(
    kind: InstanceKind, count: int, traffic: Sequence[Traffic]
) -> LoadedInstance | None:
    """Return the state for prompts only: they wait as in M/G/c; under load they share steps."""
    busy_s: list[tuple[float, float]] = []
    for each in traffic:
        used = use(kind.rates, each.shape, Phases.PREFILL)
        if used is None:
            return None
        busy_s.append((each.per_s, used.busy_s))
    per_s = sum(rate for rate, _ in busy_s)
    mean = sum(rate * s for rate, s in busy_s) / per_s
    square = sum(rate * s * s for rate, s in busy_s) / per_s
    wait = mean_wait_s(count, per_s, mean, service_cv2=square / mean**2 - 1) if mean else 0.0
    if wait == math.inf:
        return None
    return LoadedInstance(wait_s=wait, tpot_s=0.0, batch=0.0, utilisation=per_s * mean / count)


def _decoding(kind: InstanceKind, count: int, call: _Mean) -> LoadedInstance | None:
    rates, stages = kind.rates, count * kind.rates.stages
    most = rates.largest_batch(call.context) / rates.stages
    if not most:
        return None
    prompts = 0.0 if kind.phases is Phases.DECODE else 1.0

    def token_s(batch: float, arrived: float) -> float:
        """Return the time of a token with `batch` sequences and `arrived` new calls in it."""
        many = prompts * arrived
        return rates.mixed_step_s(batch, call.context, many, call.new, call.pairs, together)

    together = call.together
    per_s = call.per_s / stages
    busy = per_s * call.answer * token_s(most, most / call.answer) / most
    if busy >= 1:
        return None
    tpot = _fixed_point(lambda s: token_s(per_s * call.answer * s, per_s * s))
    if tpot is None or per_s * call.answer * tpot > most:
        return None
    # Long steps find many prompts: their number varies by more than chance alone.
    batch, arrived = per_s * call.answer * tpot, per_s * tpot
    prompt_s = (tpot - token_s(batch, 0.0)) / arrived
    square = _square_s2(tpot, prompt_s, per_s, call.new_cv2)
    together += arrived * max(0.0, square / tpot**2 - 1)
    tpot = _fixed_point(lambda s: token_s(per_s * call.answer * s, per_s * s))
    if tpot is None or per_s * call.answer * tpot > most:
        return None
    batch, arrived = per_s * call.answer * tpot, per_s * tpot
    # How much longer a step is with more sequences, and with the prompts that come meanwhile.
    longer = (token_s(batch * (1 + NUDGE), arrived) - tpot) / NUDGE / tpot
    more = (token_s(batch, arrived * (1 + NUDGE)) - tpot) / NUDGE / tpot
    pull = min(MOST_PULL, max(0.0, longer / max(1 - more, 1 - MOST_PULL)))
    many = batch * stages
    spread = _averaged(1 - pull) * pull / math.sqrt(many * (1 - pull)) if many else 0.0
    slower = 1 + pull / (1 - pull) / many if many else 1.0
    places = mean_wait_s(int(stages * most), call.per_s, call.answer * tpot * slower)
    if places == math.inf:
        return None
    load = min(per_s * prompt_s, MOST_PULL)
    return LoadedInstance(
        # For the step under way, and for prompts that join with it.
        wait_s=places + square / tpot * slower * (0.5 + load),
        tpot_s=tpot * slower,
        batch=min(batch * slower, most) * rates.stages,
        utilisation=busy,
        context=call.context,
        spread=min(spread, MOST_SPREAD),
    )


def _square_s2(step_s: float, prompt_s: float, per_s: float, cv2: float) -> float:
    """Return the mean square of a step's time.

    A step computes the prompts that came during the one before (a gated queue). So steps with
    prompts are longer, more calls come in them, and more prompts are in the next.

    Args:
        step_s: of a step, in the mean.
        prompt_s: what one prompt adds to it.
        per_s: prompts that come.
        cv2: squared deviation over mean of what prompts add.
    """
    load = min(per_s * prompt_s, MOST_PULL)
    base = step_s * (1 - load)
    square = base**2 + 2 * base * load * step_s + per_s * step_s * prompt_s**2 * (1 + cv2)
    return square / (1 - load**2)


def _averaged(turns: float) -> float:
    """Return what of a slow fluctuation's deviation is left in the mean over a call.

    Args:
        turns: how many times the fluctuation forgets itself while the call runs.
    """
    return math.sqrt(2 * (turns - 1 + math.exp(-turns))) / turns


def _fixed_point(function: Callable[[float], float]) -> float | None:
    """Return the fixed point of a function that grows more slowly than its argument.

    None: it outgrows its argument. Each step follows the line through the last two values, which
    for a convex function ends below the fixed point; otherwise plain steps lead back.
    """
    before, at = 0.0, function(0.0)
    value_before = at
    for _ in range(ITERATIONS):
        value = function(at)
        if value > LONGEST_S:
            return None
        if abs(value - at) <= CLOSE * at:
            return value
        slope = (value - value_before) / (at - before) if at != before else 0.0
        ahead = at + (value - at) / (1 - slope) if 0 <= slope < 1 else value
        before, value_before = at, value
        at = ahead if value > at and ahead < LONGEST_S else value
    return None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Times of workflows on a pool."""

    mean_s: float
    p50_s: float
    p95_s: float
    instances: Mapping[str, LoadedInstance]  # by kind


class _Arrays:
    """Arrays by what they are computed from; pools of a search have most of them in common."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Array] = {}
        self._bytes = 0

    def find(self, key: tuple[Any, ...], compute: Callable[[], Array]) -> Array:
        """Return an array that is computed once while there is room."""
        found = self._found.get(key)
        if found is None:
            found = compute()
            self._bytes += found.nbytes
            if self._bytes > MOST_BYTES:
                self._found.clear()
                self._bytes = found.nbytes
            self._found[key] = found
        return found


class Predictor:
    """Predictions for one application's workflows on any pool; instances' states are cached."""

    def __init__(self, problem: PoolProblem, workflows: Sequence[Sequence[ObservedCall]]) -> None:
        self.problem = problem
        self.kinds = {kind.name: kind for kind in problem.instances}
        self.calls = {call.name: call for call in problem.calls}
        self._work = _Work(workflows, [call.name for call in problem.calls])
        self._states: dict[tuple[str, int, tuple[Any, ...]], LoadedInstance | None] = {}
        self._arrays = _Arrays()

    def scaled(self, factor: float) -> "Predictor":
        """Return predictions for `factor` times the load."""
        other = copy(self)
        calls = [replace(call, per_s=call.per_s * factor) for call in self.problem.calls]
        other.problem = replace(self.problem, calls=calls)
        other.calls = {call.name: call for call in calls}
        other._states = {}
        return other

    def largest_factor(
        self, counts: Mapping[str, int], routes: Shares, p95_s: float = math.inf
    ) -> float:
        """Return by how much the load may grow on a pool; 0: it is in time at no rate."""

        def in_time(factor: float) -> bool:
            found = self.scaled(factor).predicted(counts, routes)
            return found is not None and found.p95_s <= p95_s

        low, high = 0.0, 1.0
        while high < MOST_TIMES and in_time(high):
            low, high = high, high * 2
        while high - low > NEAR * high and high > NEAR / MOST_TIMES:
            middle = (low + high) / 2
            low, high = (middle, high) if in_time(middle) else (low, middle)
        return low

    def state(self, name: str, count: int, routes: Shares) -> LoadedInstance | None:
        """Return one kind's state. None: it has too much to do, or is too slow for the targets."""
        traffic = tuple(
            (call, share)
            for call, shares in routes.items()
            if (share := shares.get(name, 0.0)) and self.calls[call].per_s
        )
        key = name, count, traffic
        if key not in self._states:
            kind = self.kinds[name]
            calls = ((self.calls[call], share) for call, share in traffic)
            theirs = [Traffic(shape=each.shape, per_s=each.per_s * s) for each, s in calls]
            found = loaded(kind, count, theirs)
            if found is not None and not self._in_time(kind, found, [call for call, _ in traffic]):
                found = None
            self._states[key] = found
        return self._states[key]

    def _in_time(self, kind: InstanceKind, state: LoadedInstance, calls: Sequence[str]) -> bool:
        """Return whether calls meet their targets of first and further tokens, on average."""
        targets: LatencyTargets = self.problem.targets
        if targets == NO_TARGETS:
            return True
        if state.tpot_s > targets.tpot_s:
            return False
        if kind.phases is Phases.DECODE:
            return True
        shapes = [self.calls[call].shape for call in calls]
        new = np.array([shape.new for shape in shapes])
        pairs = np.array([StepCost.attended_pairs(shape.new, shape.cached) for shape in shapes])
        first_s = _prompt_s(kind.rates, state.batch, state.context, new, pairs)
        return bool((state.wait_s + kind.rates.call_s + first_s <= targets.ttft_s).all())

    def predicted(self, counts: Mapping[str, int], routes: Shares) -> Prediction | None:
        """Return the prediction. None: the pool is overloaded, or misses the targets of calls."""
        states: dict[str, LoadedInstance] = {}
        for name, count in counts.items():
            state = self.state(name, count, routes)
            if state is None:
                return None
            states[name] = state
        seconds = np.sort(self._work.workflows_s(self._calls_s(states, routes)), axis=None)
        return Prediction(
            mean_s=float(seconds.mean()),
            p50_s=_percentile(seconds, 0.50),
            p95_s=_percentile(seconds, 0.95),
            instances=states,
        )

    def part_mean_s(self, name: str, state: LoadedInstance, routes: Shares) -> float:
        """Return the sum of these agents' calls there, in seconds; it grows with their mean."""
        parts = (self._part_s(name, state, agent) for agent in routes)
        return float(sum(np.atleast_2d(each).mean(axis=0).sum() for each in parts))

    def _calls_s(self, states: Mapping[str, LoadedInstance], routes: Shares) -> Array:
        """Return seconds of each call, a row for each way to deal them out."""
        work = self._work
        found = np.zeros((DEALS, work.count))
        for agent, shares in routes.items():
            at = work.of_agent[agent]
            if not len(at):
                continue
            used = sorted(name for name, share in shares.items() if share)
            first = [name for name in used if self.kinds[name].phases is not Phases.DECODE]
            second = [name for name in used if self.kinds[name].phases is Phases.DECODE]
            parts = {name: self._part_s(name, states[name], agent) for name in (*first, *second)}
            if all(share >= 1 for share in shares.values() if share):
                found[:, at] = sum(parts.values())
                continue
            dealt = self._dealt(agent, [shares[name] for name in first], GOLDEN)
            alone = np.zeros(dealt.shape, dtype=bool)
            for number, name in enumerate(first):
                here = dealt == number
                found[:, at] += np.where(here, parts[name], 0.0)
                alone |= here & (self.kinds[name].phases is Phases.PREFILL)
            if second:
                dealt = self._dealt(agent, [shares[name] for name in second], PLASTIC)
                for number, name in enumerate(second):
                    found[:, at] += np.where(alone & (dealt == number), parts[name], 0.0)
        return found

    def _dealt(self, agent: str, shares: Sequence[float], step: float) -> Array:
        at = self._work.of_agent[agent]
        return self._arrays.find((agent, *shares, step), lambda: _dealt(at, shares, step))

    def _part_s(self, name: str, state: LoadedInstance, agent: str) -> Array:
        """Return seconds of each of an agent's calls that this kind serves."""
        return self._arrays.find((name, state, agent), lambda: self._new_part_s(name, state, agent))

    def _new_part_s(self, name: str, state: LoadedInstance, agent: str) -> Array:
        kind, work = self.kinds[name], self._work
        at, rates = work.of_agent[agent], kind.rates
        seconds: Array = np.full(len(at), state.wait_s)
        if kind.phases is not Phases.DECODE:
            batch = state.batch / rates.stages
            seconds += rates.call_s + _prompt_s(
                rates, batch, state.context, work.new[at], work.pairs[at]
            )
        else:
            size: Array = work.prompt[at] * (
                kind.kv_bytes_per_token or self.problem.kv_bytes_per_token
            )
            seconds += transfer_s(size, self.problem.link, rates.devices)
        if kind.phases is Phases.PREFILL:
            return seconds
        levels = state.tpot_s * np.maximum(0.0, 1 + state.spread * LEVELS)
        return seconds + levels[:, None] * work.answer[at]


def _dealt(at: Array, shares: Sequence[float], step: float) -> Array:
    """Return which of the shares each call gets, for every way to deal them out.

    Numbers that fill the unit interval evenly decide, by an irrational step.
    """
    turns = np.arange(DEALS)[:, None] / DEALS
    drawn = ((at[None, :] + 1) * step + turns) % 1.0
    ends = np.cumsum(shares) / sum(shares)
    return np.minimum(np.searchsorted(ends, drawn, side="right"), len(shares) - 1)


def _prompt_s(rates: EngineRates, batch: float, context: float, new: Array, pairs: Array) -> Array:
    """Return `EngineRates.beside_s` of many prompts."""
    steps = np.maximum(1.0, np.ceil((new + batch) / rates.chunk_tokens))
    many = batch * steps
    computing = rates.prefill_token_s * new + rates.decode_seq_s * many
    met: Array | float = 1.0
    if rates.active_share < 1:
        met = 1 - (1 - rates.active_share) ** np.maximum((new + many) / steps, 1.0)
    reading = rates.weights_s * (1 - rates.expert_share * (1 - met)) * steps
    matrices = rates.fixed_s * steps + np.maximum(reading, computing)
    caches = rates.kv_token_s * many * context + rates.attention_s * pairs
    return matrices + caches + rates.prefill_seq_s + rates.exchange_s * (new + many)


class _Work:
    """Calls of all workflows as columns, with their dependencies."""

    def __init__(self, workflows: Sequence[Sequence[ObservedCall]], agents: Sequence[str]) -> None:
        calls = [call for each in workflows for call in each]
        self.count = len(calls)
        self.prompt: Array = np.array([call.prompt_tokens for call in calls], dtype=float)
        cached: Array = np.array([call.cached_tokens for call in calls], dtype=float)
        self.new: Array = self.prompt - cached
        self.pairs: Array = StepCost.attended_pairs(self.new, cached)
        self.answer: Array = np.array([call.answer_tokens for call in calls], dtype=float)
        self._gap = np.array([call.gap_s for call in calls])
        numbers = {name: number for number, name in enumerate(agents)}
        agent = np.array([numbers.get(call.agent, -1) for call in calls])
        self.of_agent: dict[str, Array] = {
            name: np.nonzero(agent == n)[0] for name, n in numbers.items()
        }
        lengths = np.array([len(each) for each in workflows])
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._chains = all(
            call.after == ((position - 1,) if position else ())
            for each in workflows
            for position, call in enumerate(each)
        )
        self._levels = [] if self._chains else _levels(workflows)

    def workflows_s(self, calls_s: Array) -> Array:
        """Return seconds of each workflow's critical path, a row for each way to deal calls out."""
        seconds = calls_s + self._gap
        if self._chains:
            return np.add.reduceat(seconds, self._starts, axis=1)
        for calls, before, first in self._levels:
            seconds[:, calls] += np.maximum.reduceat(seconds[:, before], first, axis=1)
        return np.maximum.reduceat(seconds, self._starts, axis=1)


def _levels(workflows: Sequence[Sequence[ObservedCall]]) -> list[tuple[Array, Array, Array]]:
    """Return calls level by level, each level after all that it waits for.

    Of a level: its calls, the calls that these wait for in a row, and where each one's begin.
    """
    found: list[tuple[list[int], list[int], list[int]]] = []
    offset = 0
    for each in workflows:
        depth: list[int] = []
        for position, call in enumerate(each):
            depth.append(1 + max((depth[b] for b in call.after), default=-1))
            if not call.after:
                continue
            while len(found) < depth[-1]:
                found.append(([], [], []))
            calls, before, first = found[depth[-1] - 1]
            calls.append(offset + position)
            first.append(len(before))
            before += [offset + b for b in call.after]
        offset += len(each)
    return [(np.array(c), np.array(b), np.array(f)) for c, b, f in found if c]


def _percentile(ascending: Array, share: float) -> float:
    """Return the least value at or above a share of all."""
    return float(ascending[max(0, math.ceil(share * len(ascending)) - 1)])
