"""Profile of a flow's operators, learnt from some of its rows: frequencies and lengths."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.core import Interval, mean_interval
from kairos.workflows.compile.batches import BatchProfile
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import Generation, Processing, RegisteredCall
from kairos.workflows.compile.passes.structure import structure
from kairos.workflows.compile.pipeline import Plan

PROFILE_FORMAT = 1
_DECILES = 10


class OperatorProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Learnt means, with 95 % intervals (bootstrap).

    `structure`: hash of the operator; the profile is not used for an operator with another one.
    """

    structure: str
    calls: int  # whose tokens were counted
    rows: Interval  # share of rows for which it is computed
    times: Interval  # computations in such a row: rounds of loops, items of maps
    prompt_tokens: Interval | None = None
    completion_tokens: Interval | None = None
    completion_deciles: tuple[float, ...] = ()  # from the shortest to the longest
    time_us: Interval | None = None  # of a call of a function or a processor
    text_tokens: float | None = None  # of these prompts, as estimated from their texts


class CostFactors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Halo's factors of a placement's cost, from 0 to 1; an unknown one counts as 1.

    `reuse`: the part of a row's shared prompt prefixes that is found again on a device (1 less
    lambda). `sharing`: k devices that share an operator are as fast as k to this power (beta), in
    addition to the cost of smaller batches.
    """

    reuse: float | None = None
    sharing: float | None = None

    def over(self, other: "CostFactors") -> "CostFactors":
        """Return these factors, with unknown ones taken from the other."""
        return CostFactors(
            reuse=other.reuse if self.reuse is None else self.reuse,
            sharing=other.sharing if self.sharing is None else self.sharing,
        )


UNKNOWN_FACTORS = CostFactors()


class FlowProfile(msgspec.Struct, frozen=True, kw_only=True):
    format: int = PROFILE_FORMAT
    flow: str
    rows: int  # that it was learnt from
    operators: dict[str, OperatorProfile]
    batches: dict[str, BatchProfile] = {}  # by `batch_key`
    cost: CostFactors = UNKNOWN_FACTORS

    @property
    def efficient_batches(self) -> dict[str, int]:
        """Return the efficient batch of each processor and function that was measured."""
        return {key: each.efficient for key, each in self.batches.items()}

    @property
    def answers(self) -> dict[str, float]:
        """Return the mean tokens of answers by LLM operator."""
        known = self.operators.items()
        return {name: e.completion_tokens.mean for name, e in known if e.completion_tokens}

    @property
    def times_us(self) -> dict[str, float]:
        """Return the mean time of a call, for each function and processor."""
        return {name: e.time_us.mean for name, e in self.operators.items() if e.time_us}


def learn_profile(
    plan: Plan,
    rows: int,
    lengths: Mapping[str, Sequence[tuple[int, int]]],
    times: Mapping[str, Sequence[int]],
    took_us: Mapping[str, Sequence[int]] = {},
) -> FlowProfile:
    """Return the profile learnt from some rows.

    Args:
        plan: whose operators they went through.
        rows: their number.
        lengths: tokens of prompts and answers of an operator's calls.
        times: computations of an operator, for each row with any. An operator without any has share
            0.
        took_us: time of each call of a function or a processor.
    """
    found = {}
    for operator in every_operator(plan.declaration.operators):
        if not isinstance(operator.params, Generation | RegisteredCall | Processing):
            continue
        seen = list(times.get(operator.name, ()))
        calls = lengths.get(operator.name, ())
        answers = [answer for _, answer in calls]
        found[operator.name] = OperatorProfile(
            structure=structure(operator),
            calls=len(calls),
            rows=_mean([1] * len(seen) + [0] * max(0, rows - len(seen))),
            times=_mean(seen),
            prompt_tokens=_mean([prompt for prompt, _ in calls]) if calls else None,
            completion_tokens=_mean(answers) if calls else None,
            completion_deciles=_deciles(answers),
            time_us=_mean(took_us[operator.name]) if took_us.get(operator.name) else None,
        )
    return FlowProfile(flow=plan.declaration.name, rows=rows, operators=found)


def profiles_by_operator(profile: FlowProfile, plan: Plan) -> dict[str, OperatorProfile]:
    """Return the entries for operators that are unchanged in the plan, by name."""
    return {
        operator.name: known
        for operator in every_operator(plan.declaration.operators)
        if (known := profile.operators.get(operator.name)) is not None
        and known.structure == structure(operator)
    }


def _mean(values: Iterable[float]) -> Interval:
    """Return the mean with its interval; the interval of at most one value is the value itself."""
    given = list(values)
    if len(set(given)) < 2:
        only = float(given[0]) if given else 0.0
        return Interval(only, only, only)
    found = mean_interval(given)
    assert found is not None
    return found


def _deciles(values: Sequence[int]) -> tuple[float, ...]:
    ordered = sorted(values)
    if not ordered:
        return ()
    last = len(ordered) - 1
    return tuple(_between(ordered, last * n / _DECILES) for n in range(_DECILES + 1))


def _between(ordered: Sequence[int], at: float) -> float:
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
