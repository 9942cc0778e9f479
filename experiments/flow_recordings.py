"""Rows of declared flows as recorded workflows: their calls as simulated engines served them, and
what waits for what as their plans say."""

from collections.abc import Sequence

from msgspec.structs import replace

from experiments.flow_systems import engines
from experiments.flow_workloads import FlowWorkload
from experiments.playing import TENANT, Played, service_us
from experiments.recordings import RecordedCall
from kairos.core import PLACEMENTS, POLICIES, Arrived, Finished, PlanDeclared, Record, Request
from kairos.simulate.flow_simulation import simulate_flow
from kairos.workflows import Functions
from kairos.workflows.compile.planned_work import plan_work


def declared(workload: FlowWorkload) -> PlanDeclared:
    plan = workload.flow.compile()
    work = plan_work(plan)
    assert work is not None
    return PlanDeclared(TENANT, plan.declaration.name, work)


def recorded(workload: FlowWorkload, rows: int, seed: int) -> list[Played]:
    """Each row, as served with nothing in its way (`experiments/playing.py`). A call that another
    row made for it takes no time."""
    log: list[Record] = []
    pool = engines(POLICIES["kairos"], PLACEMENTS["kairos"])
    table = iter(workload.rows(rows, seed))
    simulate_flow(workload.flow.compile(), table, Functions(), pool, (log.append,))
    arrived: dict[str, Request] = {}
    calls: dict[str, dict[str, RecordedCall]] = {}  # by workflow and agent
    for record in log:
        if isinstance(record.event, Arrived):
            arrived[record.event.request.id] = record.event.request
        elif isinstance(record.event, Finished):
            request = arrived[record.event.request_id]
            call = _call(request, record.event, workload.name)
            calls.setdefault(request.workflow_id, {})[call.agent] = call
    plan = declared(workload)
    played = [_played(plan, [*row.values()]) for row in calls.values()]
    return [each for each in played if each.workflow]  # beginnings that were touched are no row


def _call(request: Request, finished: Finished, name: str) -> RecordedCall:
    assert finished.prompt_tokens is not None
    assert finished.completion_tokens is not None
    return RecordedCall(
        workflow_id=f"{name}/{request.workflow_id}",
        app=request.app or "",
        agent=request.agent or "",
        upstream=None,
        call_index=0,
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        cached_prefix_tokens=finished.cached_tokens,
    )


def _played(declared: PlanDeclared, calls: Sequence[RecordedCall]) -> Played:
    operators = declared.plan.operators
    made = {call.agent: call for call in calls}
    took = [service_us(made[each.agent]) if each.agent in made else 0 for each in operators]
    started, after = [0] * len(operators), [0] * len(operators)
    for place, each in enumerate(operators):
        started[place] = max((started[n] + took[n] for n in each.follows), default=0)
    for place in reversed(range(len(operators))):
        for n in operators[place].follows:
            after[n] = max(after[n], took[place] + after[place])
    here = [place for place, each in enumerate(operators) if each.agent in made]
    return Played(
        tuple(
            replace(made[operators[place].agent], call_index=index)
            for index, place in enumerate(here)
        ),
        [started[place] for place in here],
        [started[place] + took[place] for place in here],
        [took[place] + after[place] for place in here],
    )
