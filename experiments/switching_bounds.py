"""What bounds a batch on devices that switch models, whoever orders it.

`loads_alone_s`: until the models that a row needs, one after the other, have been there, if calls
took no time. No order is quicker. `best_placement_s`: of all placements, with what calls cost by
the fluid model and answers of the mean length. No search is exhaustive here: one that was found the
same in all cases of `e42_switching` (`docs/decisions/flow-parts.md`). An engine that mixes
operators may be a few percent quicker than that model.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from experiments.switching import LOADS, PROFILES, SwitchingRun, rows, workflow
from kairos.workflows.compile.device_work import OperatorWork
from kairos.workflows.compile.flow_work import work_of_flow
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.prediction import FlowPrediction, OperatorCalls, predict_flow

_ANSWERED = 0.625  # of the longest answer, on average: see `kairos/simulate/flow_answers.py`


def loads_alone_s(asked: SwitchingRun) -> float:
    nothing = [replace(each, run_us=(0.0,), last_us=0.0) for each in _works(asked)]
    return _best_s(nothing, asked)


def best_placement_s(asked: SwitchingRun) -> float:
    return _best_s(_works(asked), asked)


def _best_s(works: Sequence[OperatorWork], asked: SwitchingRun) -> float:
    best = place_operators(works, LOADS[asked.loads], asked.devices)
    return best.makespan_us / 1e6


def _works(asked: SwitchingRun) -> list[OperatorWork]:
    plan = workflow(asked.workflow).compile()
    most = predict_flow(plan, rows(asked.rows, asked.seed, asked.shared))
    means = FlowPrediction(most.rows, {n: _mean(each) for n, each in most.by_operator.items()})
    profiles = {name: PROFILES[name] for name in plan.models if name is not None}
    return work_of_flow(plan, means, profiles, asked.devices)


def _mean(most: OperatorCalls) -> OperatorCalls:
    return replace(most, completion_tokens=round(_ANSWERED * most.completion_tokens))
