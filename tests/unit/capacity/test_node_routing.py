"""G12: each kind of node goes to its place."""

import pytest

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.lowering import (
    CPU_WORKERS,
    OUTSIDE,
    WorkGraph,
    WorkKind,
    WorkNode,
    node_places,
)
from kairos.capacity.pool import InstanceKind, Pool
from kairos.capacity.serving import Phases

RATES = EngineRates(rests_on="", measured=False, kv_tokens=1000.0)
KINDS = [
    InstanceKind(name=str(phases), device="x", phases=phases, rates=RATES, usd_per_hour=1.0)
    for phases in Phases
]
POOL = Pool(
    counts={"both": 1, "prefill": 1, "decode": 1},
    routes={
        "whole": {"both": 1.0},
        "parted": {"prefill": 1.0, "decode": 1.0},
        "split": {"both": 0.3, "prefill": 0.7, "decode": 0.7},
    },
)


def placed(kind, agent="whole", **more):
    node = WorkNode(name="n", kind=kind, agent=agent, **{"runs": 1.0} | more)
    return node_places(WorkGraph(nodes=(node,), edges=()), POOL, KINDS, 2.0)[0]


@pytest.mark.parametrize(
    ("agent", "prompts", "answers"),
    [
        ("whole", {"both": 1.0}, {"both": 1.0}),
        ("parted", {"prefill": 1.0}, {"decode": 1.0}),
        ("split", {"both": 0.3, "prefill": 0.7}, {"both": 0.3, "decode": 0.7}),
    ],
)
def test_g12_the_phases_of_a_call_go_where_the_plan_has_them(agent, prompts, answers):
    assert placed(WorkKind.PREFILL, agent).shares == prompts
    assert placed(WorkKind.DECODE, agent).shares == answers
    assert placed(WorkKind.DECODE, agent).at_once is None


def test_g12_tools_go_to_cpu_workers_and_people_are_outside():
    assert placed(WorkKind.TOOL).shares == {CPU_WORKERS: 1.0}
    assert placed(WorkKind.HUMAN).shares == {OUTSIDE: 1.0}


def test_g12_as_many_run_at_once_as_arrive_while_one_does():
    # 2 workflows a second, 1.5 executions each, 4 seconds: 12 at a time.
    assert placed(WorkKind.TOOL, runs=1.5, wait_s=4.0).at_once == pytest.approx(12.0)
