"""G12: each kind of node goes to its place."""

import pytest

from kairos.planner.engine_rates import EngineRates
from kairos.planner.node_routing import CPU_WORKERS, OUTSIDE, node_places
from kairos.planner.pool import InstanceKind, Pool
from kairos.planner.serving import Phases
from kairos.planner.work_graph import TokenCounts, Work, WorkGraph, WorkKind, WorkNode

RATES = EngineRates(rests_on="", measured=False, kv_tokens=1000.0)
KINDS = [
    InstanceKind(name=str(phases), device="x", phases=phases, rates=RATES, usd_per_hour=1.0)
    for phases in Phases
]
POOL = Pool(
    counts={"both": 1, "prefill": 1, "decode": 1},
    routes={
        "whole": {"both": 1.0},
        "of#its#own": {"both": 1.0},
        "parted": {"prefill": 1.0, "decode": 1.0},
        "split": {"both": 0.3, "prefill": 0.7, "decode": 0.7},
    },
    usd_per_hour=3.0,
    path_s=1.0,
    late_s=0.0,
)


def places(name, kind, **more):
    node = WorkNode(name=name, kind=kind, **more)
    return node_places(WorkGraph(nodes=(node,)), POOL, KINDS, 2.0)[0]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("whole", ("both",)),
        ("parted", ("prefill", "decode")),
        ("parted#3", ("prefill", "decode")),
        ("split", ("prefill", "decode")),
        ("of#its#own", ("both",)),
        ("of#its#own#2", ("both",)),
    ],
)
def test_g12_an_llm_call_goes_where_the_plan_has_its_agents_calls(agent, expected):
    found = places(agent, WorkKind.LLM, tokens=TokenCounts(prompt=10, answer=1))
    assert found.places == expected
    assert found.at_once is None


def test_g12_the_phases_of_a_call_that_was_taken_apart_go_to_the_sides_of_its_pair():
    assert places("parted", WorkKind.PREFILL).places == ("prefill",)
    assert places("parted", WorkKind.DECODE).places == ("decode",)
    assert places("whole", WorkKind.PREFILL).places == ("both",)
    assert places("whole", WorkKind.DECODE).places == ("both",)


@pytest.mark.parametrize(
    "kind",
    [
        WorkKind.RETRIEVAL,
        WorkKind.TOOL,
        WorkKind.COMPUTE,
        WorkKind.MEMORY,
        WorkKind.EMBED,
        WorkKind.RERANK,
    ],
)
def test_g12_what_is_no_llm_call_goes_to_cpu_workers(kind):
    assert places("any", kind).places == (CPU_WORKERS,)


def test_g12_people_are_no_workers():
    assert places("any", WorkKind.HUMAN).places == (OUTSIDE,)


def test_g12_as_many_run_at_once_as_arrive_while_one_does():
    # 2 workflows a second, 1.5 executions each, 4 seconds: 12 at a time.
    found = places("any", WorkKind.TOOL, runs=1.5, work=Work(wait_s=3.0, core_s=1.0))
    assert found.at_once == pytest.approx(12.0)
