"""How long workflows take on a pool: with its load, its queues, and their own lengths.

Each kind of instance is looked at in its steady state. By Little's law as many calls decode at once
as arrive while one does, and with each token as many prompts are computed as arrive meanwhile. The
time of a token depends on both, so it is a fixed point. Calls wait for half a step, and for a place
in a batch as in M/M/c (`queueing.py`); prompts on instances for prefill alone as in M/G/c.

A workflow's time is its critical path: each call begins when those before it have ended, after
tools and people. Waiting is put in as a mean, so what chance adds to it in single workflows is not
in the percentiles.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec

from kairos.planner.engine_rates import attended_pairs
from kairos.planner.kv_transfer import transfer_s
from kairos.planner.lowering import ObservedCall
from kairos.planner.pool import CallKind, InstanceKind, Pool, PoolProblem
from kairos.planner.queueing import mean_wait_s
from kairos.planner.serving import CallShape, Phases, use

ITERATIONS = 2_000  # of the fixed point; it grows towards it from below
CLOSE = 1e-6  # to the step before, relative
LONGEST_S = 60.0  # that a token may take


class LoadedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of instance under its load."""

    wait_s: float  # of a call, before anything is computed of it
    tpot_s: float
    batch: float  # that decode at once on one instance
    utilisation: float  # of what it could do at its largest batch


IDLE = LoadedInstance(wait_s=0.0, tpot_s=0.0, batch=0.0, utilisation=0.0)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to one kind of instance."""

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
        self.pairs = mean(lambda shape: attended_pairs(shape.new, shape.cached))
        self.answer = mean(lambda shape: max(shape.answer, 1.0))
        # That a step reads of a sequence: those with long answers are there for longer.
        read = mean(lambda shape: max(shape.answer, 1.0) * shape.context)
        self.context = read / self.answer


def loaded(kind: InstanceKind, count: int, traffic: Sequence[Traffic]) -> LoadedInstance | None:
    """The steady state of so many instances. None: there is none, they have too much to do."""
    if not count or not any(each.per_s for each in traffic):
        return IDLE
    if kind.phases is Phases.PREFILL:
        return _prefilling(kind, count, traffic)
    return _decoding(kind, count, _Mean(traffic))


def _prefilling(
    kind: InstanceKind, count: int, traffic: Sequence[Traffic]
) -> LoadedInstance | None:
    """Prompts wait for each other as in M/G/c; under load they share steps."""
    uses = [use(kind.rates, each.shape, Phases.PREFILL) for each in traffic]
    busy_s = [(each.per_s, used.busy_s) for each, used in zip(traffic, uses, strict=True) if used]
    per_s = sum(rate for rate, _ in busy_s)
    mean = sum(rate * s for rate, s in busy_s) / per_s
    square = sum(rate * s * s for rate, s in busy_s) / per_s
    wait = mean_wait_s(count, per_s, mean, service_cv2=square / mean**2 - 1)
    if wait == math.inf:
        return None
    return LoadedInstance(wait_s=wait, tpot_s=0.0, batch=0.0, utilisation=per_s * mean / count)


def _decoding(kind: InstanceKind, count: int, call: _Mean) -> LoadedInstance | None:
    rates, stages = kind.rates, count * kind.rates.stages
    most = rates.largest_batch(call.context) / rates.stages
    prompts = 0.0 if kind.phases is Phases.DECODE else 1.0

    def token_s(batch: float, arrived: float) -> float:
        """With so many sequences that decode, and calls that arrive, for each token."""
        return rates.mixed_step_s(batch, call.context, prompts * arrived, call.new, call.pairs)

    per_s = call.per_s / stages
    tpot = _fixed_point(lambda s: token_s(per_s * call.answer * s, per_s * s))
    if not most or tpot is None or per_s * call.answer * tpot > most:
        return None
    places = mean_wait_s(int(stages * most), call.per_s, call.answer * tpot)
    return LoadedInstance(
        wait_s=places + tpot / 2,
        tpot_s=tpot,
        batch=per_s * call.answer * tpot * rates.stages,
        utilisation=per_s * call.answer * token_s(most, most / call.answer) / most,
    )


def _fixed_point(function: Callable[[float], float]) -> float | None:
    """Where a function that grows, more slowly than its argument, equals it. None: it outgrows."""
    at = function(0.0)
    for _ in range(ITERATIONS):
        following = function(at)
        if following > LONGEST_S:
            return None
        if following - at <= CLOSE * at:
            return following
        at = following
    return None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Of workflows on a pool."""

    mean_s: float
    p50_s: float
    p95_s: float
    instances: Mapping[str, LoadedInstance]  # by kind


def predicted(
    problem: PoolProblem, pool: Pool, workflows: Sequence[Sequence[ObservedCall]]
) -> Prediction | None:
    """How long these workflows take. None: the pool has too much to do.

    `agent` of a call is the name of its `CallKind`; of a kind that is split each call takes the
    mean over its ways.
    """
    states: dict[str, LoadedInstance] = {}
    kinds = {kind.name: kind for kind in problem.instances}
    for name, count in pool.counts.items():
        state = loaded(kinds[name], count, _traffic(problem.calls, pool, name))
        if state is None:
            return None
        states[name] = state
    timing = _Timing(problem, pool, kinds, states)
    seconds = sorted(_workflow_s(calls, timing) for calls in workflows)
    return Prediction(
        mean_s=fmean(seconds),
        p50_s=_percentile(seconds, 0.50),
        p95_s=_percentile(seconds, 0.95),
        instances=states,
    )


def _traffic(calls: Sequence[CallKind], pool: Pool, instance: str) -> list[Traffic]:
    return [
        Traffic(shape=call.shape, per_s=call.per_s * share)
        for call in calls
        if (share := pool.routes[call.name].get(instance, 0.0))
    ]


class _Timing:
    """What single calls take."""

    def __init__(
        self,
        problem: PoolProblem,
        pool: Pool,
        kinds: Mapping[str, InstanceKind],
        states: Mapping[str, LoadedInstance],
    ) -> None:
        self._problem, self._pool = problem, pool
        self._kinds, self._states = kinds, states
        self._contexts = {
            name: _Mean(traffic).context
            for name in states
            if (traffic := _traffic(problem.calls, pool, name))
        }

    def call_s(self, call: ObservedCall) -> float:
        ways = self._pool.routes[call.agent].items()
        return sum(share * self._part_s(call, self._kinds[name]) for name, share in ways)

    def _part_s(self, call: ObservedCall, kind: InstanceKind) -> float:
        state, rates = self._states[kind.name], kind.rates
        seconds = state.wait_s
        if kind.phases is not Phases.DECODE:
            new = call.prompt_tokens - call.cached_tokens
            pairs = attended_pairs(new, call.cached_tokens)
            batch = state.batch / rates.stages
            context = self._contexts[kind.name] if batch else 0.0
            seconds += rates.call_s + rates.beside_s(batch, context, new, pairs)
        else:
            size = self._problem.kv_bytes_per_token * call.prompt_tokens
            seconds += transfer_s(size, self._problem.link, rates.devices)
        if kind.phases is not Phases.PREFILL:
            seconds += call.answer_tokens * state.tpot_s
        return seconds


def _workflow_s(calls: Sequence[ObservedCall], timing: _Timing) -> float:
    ends: list[float] = []
    for call in calls:
        begins = max((ends[each] for each in call.after), default=0.0) + call.gap_s
        ends.append(begins + timing.call_s(call))
    return max(ends)


def _percentile(ascending: Sequence[float], share: float) -> float:
    """The least that is at or above so large a share of all."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]
