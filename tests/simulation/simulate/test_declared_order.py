"""Flows that say what calls follow, in simulated engines."""

from functools import cache

import msgspec

from experiments.flow_systems import Undeclared, engines
from experiments.flow_workloads import parallel, reflect
from kairos.core import (
    MOST_OPERATORS,
    PLACEMENTS,
    POLICIES,
    PlanDeclared,
    PlannedWork,
    Record,
    check_plan,
)
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import simulate_flow
from kairos.workflows import Functions
from tests.support.flow_tables import example
from tests.support.simulate import build
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import compile_plan, plan_work

POOL = engines(POLICIES["kairos"], PLACEMENTS["kairos"])


@cache
def logged(client=FlowClient):
    workload, log = parallel(), []
    pool = msgspec.structs.replace(POOL, client=client)
    table = iter(workload.rows(20, seed=1))
    simulate_flow(workload.flow.compile(), table, Functions(), pool, (log.append,))
    return log


def test_a_log_with_a_declared_plan_replays_to_the_same_decisions():
    log = logged()
    read_back = msgspec.json.decode(msgspec.json.encode(log), type=list[Record])
    fresh = build.balancer(policy="kairos", placement="kairos")

    assert sum(isinstance(each.event, PlanDeclared) for each in log) == 1
    assert build.replay(read_back, fresh) == log


def test_what_a_plan_says_changes_the_order_of_calls():
    declared, undeclared = logged(), logged(Undeclared)

    assert order_of(declared) != order_of(undeclared)


def order_of(log):
    return [each.request_id for record in log for each in record.commands]


def follows(plan):
    work = plan_work(plan)
    names = [each.agent for each in work.operators]
    return {each.agent: [names[place] for place in each.follows] for each in work.operators}


def test_a_plan_says_which_llm_calls_follow_which():
    critics = ["critic0", "critic1", "critic2"]

    assert follows(reflect().flow.compile()) == {
        "draft": [],
        **{each: ["draft"] for each in critics},
        "final": critics,
    }


def test_plans_of_the_example_flows_can_be_declared():
    for name in ("extract_and_check.yaml", "classify_and_answer.yaml", "map_reduce.yaml"):
        work = plan_work(compile_plan(example(name).declaration))
        balancer = build.balancer()
        balancer.handle(PlanDeclared("default", name, work), 0)
        decoded = msgspec.json.decode(msgspec.json.encode(work), type=PlannedWork)
        assert decoded == work, name


def test_operators_of_a_map_repeat_with_each_other_and_come_before_what_follows_it():
    work = plan_work(compile_plan(example("map_reduce.yaml").declaration))
    mapped = [each for each in work.operators if each.repeats is not None]
    last = work.operators[-1]

    assert mapped
    assert len({each.repeats for each in mapped}) == 1
    assert last.repeats is None
    assert {work.operators[place].agent for place in last.follows} <= {e.agent for e in mapped}


def test_a_flow_of_more_maps_than_a_plan_has_operators_can_be_declared():
    """Of which one has a call: were the plan refused, so would all invocations be."""
    bodies = [f'{{kind: format, template: "{n} {{{{ item }}}}"}}' for n in range(MOST_OPERATORS)]
    bodies.append('{kind: llm, prompt: "{{ item }}"}')
    maps = "".join(
        f"  m{n}: {{kind: map, over: row.items, result: t{n}, body: {{t{n}: {body}}}}}\n"
        for n, body in enumerate(bodies)
    )
    outputs = ", ".join(f"o{n}: m{n}" for n in range(len(bodies)))
    text = f"flow: maps\noperators:\n  row: {{kind: input}}\n{maps}outputs: {{{outputs}}}\n"
    work = plan_work(compile_plan(read_yaml(text, "maps")))

    assert len(work.operators) == 1
    check_plan(work)
