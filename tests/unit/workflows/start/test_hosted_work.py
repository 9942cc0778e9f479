"""Tests of the work of a host's devices, as `kairos plan --host` and `run --host` reckon it."""

from random import Random

import msgspec
import pytest

from experiments.e56_kept_order import drawn_flow
from kairos.workflows import Generation
from kairos.workflows.compile.flow_profile import CostFactors, learn_profile
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.prediction import predict_flow
from kairos.workflows.run.engine_host import HostedModel, HostFile
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.hosted_pool import host_plan, hosted_work


def drawn_case(seed):
    """A flow, its table, a host and what was learnt of half of the rows."""
    draw = Random(seed)
    drawn, rows = drawn_flow(seed, rows=24)
    plan = drawn.compile()
    host = HostFile(
        devices=draw.randint(1, 4),
        models={"m": HostedModel(profile="a40-llama3-8b", load_s=draw.uniform(1, 60))},
        cost=CostFactors(reuse=draw.random(), sharing=draw.random()),
    )
    operators = plan.declaration.operators
    names = [each.name for each in operators if isinstance(each.params, Generation)]
    lengths = {
        name: [(draw.randint(20, 900), draw.randint(1, 200)) for _ in range(12)] for name in names
    }
    times = {name: [1] * draw.randint(1, 12) for name in names}
    return plan, rows, host, learn_profile(plan, 12, lengths, times)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_places_by_the_same_work_as_its_plan(seed):
    plan, rows, host, known = drawn_case(seed)
    for profile in (None, known):
        works, placed = host_plan(plan, open_table(rows), host, learnt=profile)
        planned = hosted_work(plan, predict_flow(plan, rows), host, host.devices, profile)
        assert works == planned
        assert placed == place_operators(planned, host.loads, host.devices)
    assert works != host_plan(plan, open_table(rows), host)[0]  # what was learnt made a difference


@pytest.mark.parametrize("seed", range(12))
def test_factors_of_the_host_count_before_those_of_the_profile(seed):
    plan, rows, host, known = drawn_case(seed)
    asked = plan, predict_flow(plan, rows)
    both = hosted_work(*asked, host, 4, known)
    of_profile = msgspec.structs.replace(known, cost=host.cost)
    assert (
        hosted_work(*asked, msgspec.structs.replace(host, cost=CostFactors()), 4, of_profile)
        == both
    )
    others = msgspec.structs.replace(known, cost=CostFactors(reuse=0.0, sharing=0.0))
    assert hosted_work(*asked, host, 4, others) == both
    half = msgspec.structs.replace(host, cost=CostFactors(reuse=host.cost.reuse))
    assert hosted_work(*asked, half, 4, of_profile) == both


def test_of_a_long_table_a_run_takes_what_was_learnt_times_its_rows():
    plan, rows, host, known = drawn_case(3)
    long = [{name: f"{number} {text}" for name, text in rows[0].items()} for number in range(3_000)]
    works, _ = host_plan(plan, open_table(long), host, learnt=known)
    for each in works:
        assert each.calls == pytest.approx(3_000 * known.operators[each.name].rows.mean, abs=1)
