"""A plan's LLM calls as work for devices: of each operator how many, how long, after which."""

import math
from collections.abc import Iterator, Mapping, Sequence

from kairos.engine_profile import EngineProfile
from kairos.errors import SetupError
from kairos.plan.call_shapes import llm_needs
from kairos.plan.check import every
from kairos.plan.costs.fluid import makespan_us
from kairos.plan.device_work import OperatorWork
from kairos.plan.operators import Generation
from kairos.plan.pipeline import Plan
from kairos.plan.prediction import FlowPrediction, OperatorCalls
from kairos.planner.serving import CallShape


def flow_work(
    plan: Plan,
    prediction: FlowPrediction,
    profiles: Mapping[str, EngineProfile],
    devices: int,
) -> list[OperatorWork]:
    """Operators that call models, each after those whose answers it needs, directly or by others.
    `profiles`: an engine that serves the model, by the model's name; of calls that name none the
    only one there is. Calls of one operator are taken to be alike.

    Raises:
        SetupError: a model is not among them.
    """
    operators, counted = plan.declaration.operators, prediction.by_operator
    waits, made = llm_needs(operators), []
    for operator in every(operators):
        calls = counted.get(operator.name)
        if isinstance(operator.params, Generation) and calls is not None and calls.calls:
            model = _model(operator.params.model, profiles)
            after = tuple(dict.fromkeys(_asked(waits, operator.name, counted)))
            made.append(_work(operator.name, model, after, calls, profiles, devices))
    return made


def _asked(
    waits: Mapping[str, Sequence[str]], name: str, counted: Mapping[str, OperatorCalls]
) -> Iterator[str]:
    """Those it waits for; in place of one of which nothing is asked, those which that waits for."""
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


def _work(
    name: str,
    model: str,
    after: tuple[str, ...],
    counted: OperatorCalls,
    profiles: Mapping[str, EngineProfile],
    devices: int,
) -> OperatorWork:
    shape = CallShape(
        prompt=counted.prompt_tokens / counted.calls,
        answer=counted.completion_tokens / counted.calls,
    )
    shares = (math.ceil(counted.calls / parts) for parts in range(1, devices + 1))
    return OperatorWork(
        name=name,
        model=model,
        needs=after,
        calls=counted.calls,
        run_us=tuple(makespan_us(profiles[model], shape, share) for share in shares),
        last_us=makespan_us(profiles[model], shape, 1),
    )
