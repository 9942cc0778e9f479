"""A plan's LLM calls as work for devices: of each operator how many, how long, after which."""

import math
from collections.abc import Iterator, Mapping, Sequence

from kairos.engine_profile import EngineProfile
from kairos.errors import SetupError
from kairos.plan.costs.fluid import makespan_us
from kairos.plan.device_work import OperatorWork
from kairos.plan.operators import Generation, Operator
from kairos.plan.pipeline import Plan
from kairos.plan.prediction import FlowPrediction, OperatorCalls
from kairos.plan.references import needs
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
    made: list[OperatorWork] = []
    # Of any operator: the LLM operators that it waits for, and those that who needs it waits for.
    waiting: dict[str, tuple[str, ...]] = {}
    callers: dict[str, tuple[str, ...]] = {}
    for operator, around in _nested(plan.declaration.operators):
        waits = [name for outer in around for name in waiting[outer]]
        waits += [name for need in needs(operator) for name in callers.get(need, ())]
        waiting[operator.name] = callers[operator.name] = tuple(dict.fromkeys(waits))
        counted = prediction.by_operator.get(operator.name)
        if isinstance(operator.params, Generation) and counted is not None and counted.calls:
            model = _model(operator.params.model, profiles)
            made.append(
                _work(operator.name, model, callers[operator.name], counted, profiles, devices)
            )
            callers[operator.name] = (operator.name,)
        for outer in around:  # who needs a loop needs what is in it
            callers[outer] = tuple(dict.fromkeys((*callers[outer], *callers[operator.name])))
    return made


def _nested(
    operators: Sequence[Operator], around: tuple[str, ...] = ()
) -> Iterator[tuple[Operator, tuple[str, ...]]]:
    """Each with the operators in whose bodies it is."""
    for each in operators:
        yield each, around
        yield from _nested(each.body, (*around, each.name))


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
        needs=tuple(each for each in after if each != name),
        calls=counted.calls,
        run_us=tuple(makespan_us(profiles[model], shape, share) for share in shares),
        last_us=makespan_us(profiles[model], shape, 1),
    )
