"""How long workflows take on a pool: with its load, its queues, and their own lengths.

Each kind of instance is looked at in its steady state. Of its time, what prompts take (phi) is lost
to decoding, so a token takes step / (1 - phi). By Little's law as many calls decode at once as
arrive while one does; the step depends on how many they are, so this is a fixed point. Prompts wait
for each other as in M/G/c (`queueing.py`), and calls for a place in a batch as in M/M/c, where a
batch is full.

A workflow's time is its critical path: each call begins when those before it have ended, after
tools and people. Waiting is put in as a mean, so what chance adds to it in single workflows is not
in the percentiles.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from kairos.planner.kv_transfer import transfer_s
from kairos.planner.lowering import ObservedCall
from kairos.planner.pool import CallKind, InstanceKind, Pool, PoolProblem
from kairos.planner.queueing import mean_wait_s
from kairos.planner.serving import CallShape, Phases

ITERATIONS = 500  # of the fixed point; it grows towards it from below
CLOSE = 1e-6


class LoadedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of instance under its load."""

    wait_s: float  # of a call, before anything is computed of it
    tpot_s: float
    batch: float  # that decode at once on one instance
    prefill_share: float  # of time, phi
    utilisation: float  # of what it could do at its largest batch


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to one kind of instance."""

    shape: CallShape
    per_s: float


def loaded(kind: InstanceKind, count: int, traffic: Sequence[Traffic]) -> LoadedInstance | None:
    """The steady state of so many instances. None: there is none, they have too much to do."""
    rates = kind.rates
    per_s = sum(each.per_s for each in traffic)
    if not per_s or not count:
        return LoadedInstance(wait_s=0.0, tpot_s=0.0, batch=0.0, prefill_share=0.0, utilisation=0.0)
    servers = count * rates.stages
    prompts = [] if kind.phases is Phases.DECODE else _prefills(kind, traffic)
    phi = sum(s * each.per_s for s, each in zip(prompts, traffic, strict=False)) / servers
    if phi >= 1:
        return None
    wait = _prompt_wait_s(prompts, traffic, servers) if prompts else 0.0
    if kind.phases is Phases.PREFILL:
        return LoadedInstance(
            wait_s=wait, tpot_s=0.0, batch=0.0, prefill_share=phi, utilisation=phi
        )
    answer = sum(each.shape.answer * each.per_s for each in traffic) / per_s
    context = _context(traffic)
    most = rates.largest_batch(context) / rates.stages
    batch = _batch(kind, per_s / servers * answer / (1 - phi), context, most)
    if batch is None:
        return None
    tpot = rates.step_s(batch, context) / (1 - phi)
    places = mean_wait_s(int(servers * most), per_s, answer * tpot)
    step_at_most = rates.step_s(most, context)
    return LoadedInstance(
        wait_s=wait + places + tpot / 2,
        tpot_s=tpot,
        batch=batch * rates.stages,
        prefill_share=phi,
        utilisation=phi + per_s / servers * answer * step_at_most / most,
    )


def _prefills(kind: InstanceKind, traffic: Sequence[Traffic]) -> list[float]:
    return [kind.rates.prefill_s(each.shape.new, each.shape.cached) for each in traffic]


def _prompt_wait_s(prompts: Sequence[float], traffic: Sequence[Traffic], servers: int) -> float:
    per_s = sum(each.per_s for each in traffic)
    mean = sum(s * each.per_s for s, each in zip(prompts, traffic, strict=True)) / per_s
    square = sum(s * s * each.per_s for s, each in zip(prompts, traffic, strict=True)) / per_s
    return mean_wait_s(servers, per_s, mean, service_cv2=square / mean**2 - 1)


def _context(traffic: Sequence[Traffic]) -> float:
    """That a step reads of a sequence: those with long answers are there for longer."""
    steps = sum(each.per_s * each.shape.answer for each in traffic)
    read = sum(each.per_s * each.shape.answer * each.shape.context for each in traffic)
    return read / steps if steps else fmean(each.shape.context for each in traffic)


def _batch(kind: InstanceKind, tokens_per_s: float, context: float, most: float) -> float | None:
    """Of one stage: where arrivals, in tokens a second, and steps balance. None: nowhere."""
    batch = 0.0
    for _ in range(ITERATIONS):
        following = tokens_per_s * kind.rates.step_s(batch, context)
        if following > most:
            return None
        if following - batch <= CLOSE * max(1.0, batch):
            return following
        batch = following
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

    def call_s(self, call: ObservedCall) -> float:
        ways = self._pool.routes[call.agent].items()
        return sum(share * self._part_s(call, self._kinds[name]) for name, share in ways)

    def _part_s(self, call: ObservedCall, kind: InstanceKind) -> float:
        state, rates = self._states[kind.name], kind.rates
        seconds = state.wait_s
        if kind.phases is not Phases.DECODE:
            new = call.prompt_tokens - call.cached_tokens
            seconds += rates.call_s + rates.prefill_s(new, call.cached_tokens)
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
