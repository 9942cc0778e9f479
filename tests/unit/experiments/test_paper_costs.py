"""The papers' costs of a plan's calls, by hand."""

import pytest

from experiments.halo_cost import ReuseFactors
from experiments.paper_costs import paper_costs
from kairos.core import EngineProfile, StepCost
from kairos.workflows.compile.fluid_engine import FluidCall

ENGINE = EngineProfile(
    name="round",
    source="made up",
    measured=False,
    kv_tokens=10,
    step=StepCost(fixed_us=10, prefill_token_us=1),
)
FIRST = FluidCall(row=0, prompt_tokens=15, completion_tokens=4, prefixes=((1, 10.0), (2, 15.0)))
OTHER = FluidCall(row=0, prompt_tokens=17, completion_tokens=2, prefixes=((1, 10.0), (3, 17.0)))
JUDGE = FluidCall(
    row=0,
    prompt_tokens=16,
    completion_tokens=3,
    prefixes=((1, 10.0), (2, 15.0), (4, 16.0)),
    after=(0,),
)


def test_cost_paper_is_helium_s_hand_example_and_halo_s_sum():
    found = paper_costs([FIRST, OTHER, JUDGE], ["one", "other", "judge"], ENGINE, 1)
    assert found.token_steps == pytest.approx(13.4)  # as in test_token_steps.py
    gamma = ReuseFactors().gamma
    one, other, judge = 25 + 3 * 10, 27 + 10, 26 + 2 * 10
    assert found.halo_s * 1e6 == pytest.approx(one + gamma * (other + judge))


def test_cost_paper_deals_rows_to_instances_and_divides_operators_by_less_than_their_number():
    calls = [FIRST, FluidCall(row=1, prompt_tokens=15, completion_tokens=4, prefixes=((9, 15.0),))]
    one, two = (paper_costs(calls, ["one", "one"], ENGINE, n) for n in (1, 2))
    assert two.token_steps == pytest.approx(7.0)
    assert one.token_steps == pytest.approx(14.0)
    assert two.halo_s == pytest.approx(one.halo_s / 2 ** ReuseFactors().beta)
