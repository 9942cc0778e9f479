"""LLM calls of a plan as work for devices: numbers, lengths and dependencies by operator."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.core import CallShape, EngineProfile, SetupError
from kairos.workflows.compile.call_shapes import call_shapes, llm_needs
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.costs.fluid import makespan_us
from kairos.workflows.compile.device_work import OperatorWork
from kairos.workflows.compile.flow_profile import UNKNOWN_FACTORS, CostFactors, OperatorProfile
from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.prediction import FlowPrediction, OperatorCalls


class ContextCall(msgspec.Struct, frozen=True, kw_only=True):
    """Answered call of a row, for `measured_reuse`.

    `row`: with its stage; times in µs since any origin; tokens of its prompt.
    """

    row: tuple[int, int]
    operator: str
    begun_us: int
    ended_us: int
    prompt_tokens: int
    cached_tokens: int


def work_of_flow(
    plan: Plan,
    prediction: FlowPrediction,
    profiles: Mapping[str, EngineProfile],
    devices: int,
    factors: CostFactors = UNKNOWN_FACTORS,
    known: Mapping[str, OperatorProfile] | None = None,
) -> list[OperatorWork]:
    """Return the operators that call models, each after the ones whose answers it needs.

    Calls of one operator are assumed to be alike.

    Args:
        plan: what is run.
        prediction: its calls at most, and their lengths.
        profiles: an engine for each model, by the model's name; calls that name none use the only
            one.
        devices: their number.
        factors: of the cost.
        known: learnt profiles of operators: number and lengths of calls.

    Raises:
        SetupError: a model has no profile.
    """
    operators = plan.declaration.operators
    counted = {
        name: _learnt(calls, prediction.rows, (known or {}).get(name))
        for name, calls in prediction.by_operator.items()
    }
    waits, made = llm_needs(operators), []
    reuse = 1.0 if factors.reuse is None else factors.reuse
    sharing = 1.0 if factors.sharing is None else factors.sharing
    reused = shared_contexts(operators)
    for operator in every_operator(operators):
        name, calls = operator.name, counted.get(operator.name)
        if not isinstance(operator.params, Generation) or calls is None or not calls.calls:
            continue
        model = _model(operator.params.model, profiles)
        engine, number = profiles[model], calls.calls
        shape = CallShape(
            prompt=calls.prompt_tokens / number, answer=calls.completion_tokens / number
        )
        run_us = tuple(
            makespan_us(engine, shape, math.ceil(number / parts)) / parts ** (sharing - 1)
            for parts in range(1, devices + 1)
        )
        last_us = makespan_us(engine, shape, 1)
        context, share = reused.get(name, (None, 0.0))
        tokens = share * calls.prompt_tokens
        if tokens > engine.kv_tokens:
            context, tokens = None, 0.0
        saved_us = min(tokens * engine.step.prefill_token_us, run_us[0] - last_us)
        work = OperatorWork(
            name=name,
            model=model,
            needs=tuple(dict.fromkeys(_asked(waits, name, counted))),
            calls=number,
            run_us=run_us,
            last_us=last_us,
            context=context,
            reused_us=reuse * max(0.0, saved_us),
        )
        made.append(work)
    return made


def _learnt(counted: OperatorCalls, rows: int, known: OperatorProfile | None) -> OperatorCalls:
    """Return the calls with learnt numbers and lengths, but no more than possible."""
    if known is None or not counted.calls:
        return counted
    prompt, answer = known.prompt_tokens, known.completion_tokens
    if prompt is None or answer is None:
        return counted
    calls = min(counted.calls, max(1, round(rows * known.rows.mean * known.times.mean)))
    return OperatorCalls(
        calls=calls,
        merged=counted.merged,
        prompt_tokens=round(calls * prompt.mean),
        completion_tokens=round(calls * answer.mean),
    )


def shared_contexts(operators: Sequence[Operator]) -> dict[str, tuple[str, float]]:
    """Return the shared prefixes of a row's prompts, and their share of each (Halo's lambda).

    Prefixes shared by all rows are left out: an engine computes them once for the whole batch. So
    are operators that share no prefix of a row with another.
    """
    shapes = call_shapes(operators)
    paths = {name: call.prompt for name, call in shapes.calls.items()}
    below: dict[str, set[str]] = {}  # by segment, the operators whose prompts have it
    for name, path in paths.items():
        for segment in path:
            below.setdefault(segment.name, set()).add(name)
    found = {}
    for name, path in paths.items():
        varying = path[shapes.varies[name] :]
        shared = [each for each in varying if len(below[each.name]) > 1]
        if shared:
            tokens = sum(each.tokens for each in shared)
            found[name] = (shared[0].name, tokens / sum(each.tokens for each in path))
    return found


def measured_reuse(operators: Sequence[Operator], calls: Sequence[ContextCall]) -> float | None:
    """Return the prefix tokens that engines reused, as a part of what `shared_contexts` expects.

    A call counts if another operator's call of its row and context had been answered before it
    began. Tokens shared by all rows are assumed to be found first, and are left out. Never above 1.

    Args:
        operators: of a plan.
        calls: of some rows, in any order.

    Returns:
        None: no call counts, or no call has cached tokens, as with engines that do not report them.
    """
    contexts, shapes = shared_contexts(operators), call_shapes(operators)
    same = {
        name: sum(each.tokens for each in call.prompt[: shapes.varies[name]])
        for name, call in shapes.calls.items()
    }
    first_ended: dict[tuple[tuple[int, int], str], dict[str, int]] = {}
    for call in calls:
        if call.operator in contexts:
            ends = first_ended.setdefault((call.row, contexts[call.operator][0]), {})
            ends[call.operator] = min(call.ended_us, ends.get(call.operator, call.ended_us))
    found = expected = 0.0
    for call in calls:
        if call.operator not in contexts:
            continue
        context, share = contexts[call.operator]
        ends = first_ended[call.row, context]
        others = (at for name, at in ends.items() if name != call.operator)
        if min(others, default=math.inf) <= call.begun_us:
            found += max(0, call.cached_tokens - same[call.operator])
            expected += share * call.prompt_tokens
    if not expected or not any(call.cached_tokens for call in calls):
        return None
    return min(1.0, found / expected)


def _asked(
    waits: Mapping[str, Sequence[str]], name: str, counted: Mapping[str, OperatorCalls]
) -> Iterator[str]:
    """Yield the nearest upstream operators that make LLM calls.

    An upstream operator without calls is replaced by its own upstream operators.
    """
    for each in waits[name]:
        calls = counted.get(each)
        if calls is not None and calls.calls:
            yield each
        else:
            yield from _asked(waits, each, counted)


def _model(named: str | None, profiles: Mapping[str, EngineProfile]) -> str:
    if named is None and len(profiles) == 1:
        return next(iter(profiles))
    if named is None or named not in profiles:
        asked = "calls that name no model" if named is None else f"the model '{named}'"
        known = ", ".join(profiles) or "none"
        raise SetupError(f"the flow has {asked}, and the host file knows {known}: add it there")
    return named
