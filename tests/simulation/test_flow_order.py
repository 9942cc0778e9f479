"""The plan's order in simulated engines whose memory is small beside the table."""

import msgspec
import pytest

from experiments.flow_workloads import debate, parallel, trading
from kairos import flow
from kairos.dispatcher.placements import PLACEMENTS
from kairos.flow.functions import Functions
from kairos.plan.call_shapes import call_shapes
from kairos.plan.nesting import nestings
from kairos.plan.order import cache_aware_order
from kairos.plan.passes.order import AS_DECLARED, KV_TOKENS, of_sequences
from kairos.scheduler.policies import POLICIES
from kairos.sim.engine.profiles import profile
from kairos.sim.flow_simulation import PoolOptions, simulate_flow

POOL = PoolOptions(
    instances=2,
    profile=msgspec.structs.replace(profile("h200-llama3-8b"), kv_tokens=KV_TOKENS, max_num_seqs=8),
    policy=POLICIES["kairos"],
    placement=PLACEMENTS["kairos"],
)


def ran(workload, rows, order=None, seed=1):
    plan = workload.flow.compile()
    if order is not None:
        plan = msgspec.structs.replace(plan, order=order, passes=flow.Passes(order=False))
    return simulate_flow(plan, iter(workload.rows(rows, seed)), Functions(), POOL)


def hit_share(run):
    return run.prompt_tokens_cached / (run.prompt_tokens_cached + run.prompt_tokens_computed)


def operator_major(workload):
    shapes = call_shapes(workload.flow.compile().declaration.operators)
    order = cache_aware_order(shapes.calls, KV_TOKENS)
    ways = nestings(order, shapes.static)
    return of_sequences("operator-major", ways["operator-major"])


def test_e8_parallel_chains_find_at_least_twice_what_operator_major_order_does():
    workload = parallel()
    planned = ran(workload, 32)
    other = ran(workload, 32, operator_major(workload))

    assert hit_share(planned) >= 2 * hit_share(other)
    assert planned.simulated_s < other.simulated_s
    assert planned.figures.written == other.figures.written == 32


@pytest.mark.parametrize("workload", [debate(), trading()], ids=lambda each: each.name)
def test_the_plans_order_is_not_behind_that_in_which_calls_become_ready(workload):
    planned, declared = ran(workload, 10), ran(workload, 10, AS_DECLARED)
    assert planned.simulated_s <= 1.01 * declared.simulated_s


@pytest.mark.long
def test_where_contexts_of_all_rows_do_not_fit_few_are_open_and_the_table_takes_less_time():
    small = msgspec.structs.replace(profile("h200-llama3-8b"), kv_tokens=KV_TOKENS)
    pool = msgspec.structs.replace(POOL, profile=small)
    workload = parallel()
    rows = workload.rows(48, seed=1)
    planned, plain = (
        simulate_flow(workload.flow.compile(passes), iter(rows), Functions(), pool)
        for passes in (flow.Passes(), flow.Passes(order=False))
    )

    assert planned.simulated_s < 0.75 * plain.simulated_s
    assert hit_share(planned) > 2 * hit_share(plain)
    assert planned.figures.written == 48
