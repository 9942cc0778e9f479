"""G6, G9: what calls take of instances, by hand; pairs, and the paper's findings on them."""

import math

import pytest

from experiments.device_pairs import PairQuestion, compared, pair
from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.ownership import Terms
from kairos.capacity.serving import LatencyTargets, Phases, use
from kairos.core import CallShape

# A step: 10 ms, and 1 ms for each sequence; a prompt token 0.1 ms. No context is too long.
RATES = EngineRates(
    rests_on="a test", measured=True, kv_tokens=1e6, max_num_seqs=10,
    fixed_s=0.010, prefill_token_s=0.0001, decode_seq_s=0.001,
)  # fmt: skip
CALL = CallShape(prompt=1000, cached=100, answer=50)
FOUND = load_catalogue()


def test_g6_prompts_share_a_step_as_far_as_it_goes():
    found = use(RATES, CALL, Phases.PREFILL)
    assert found.batch == 9  # of 900 new tokens, in 8192
    assert found.latency_s == pytest.approx(0.010 + 9 * 900 * 0.0001)
    assert found.busy_s == pytest.approx(found.latency_s / 9)
    in_time = use(RATES, CALL, Phases.PREFILL, LatencyTargets(ttft_s=0.2))
    assert (in_time.batch, in_time.busy_s) == (2, pytest.approx(0.095))


def test_g6_targets_make_batches_smaller_or_rule_an_instance_out():
    in_time = use(RATES, CALL, Phases.DECODE, LatencyTargets(tpot_s=0.015))
    assert in_time.batch == 5
    both = use(RATES, CALL, Phases.BOTH, LatencyTargets(tpot_s=0.016))
    assert both.batch == 2  # 10 + 2 + 2 * 100 / 50 ms
    assert use(RATES, CALL, Phases.DECODE, LatencyTargets(tpot_s=0.005)) is None
    assert use(RATES, CALL, Phases.PREFILL, LatencyTargets(ttft_s=0.09)) is None
    assert use(RATES, CALL, Phases.BOTH, LatencyTargets(ttft_s=0.09)) is None


def test_calls_that_no_memory_holds_are_not_served():
    long = CallShape(prompt=2e6, answer=1)
    assert [use(RATES, long, phases) for phases in Phases] == [None, None, None]


def question(prompt, answer, model="llama-3-8b", **more):
    return PairQuestion(
        model=FOUND.model_named(model), call=CallShape(prompt=prompt, answer=answer), **more
    )


def pairs(asked, *names):
    devices = [tuple(map(FOUND.accelerator_named, name.split("::"))) for name in names]
    h100 = FOUND.accelerator_named("h100")
    return compared(asked, devices, (h100, h100))


def test_g9_a_pair_costs_what_both_sides_take_at_their_price():
    h100, gaudi = FOUND.accelerator_named("h100"), FOUND.accelerator_named("gaudi3")
    found = pair(question(4096, 512, terms=Terms()), h100, gaudi)
    first = found.prefill.use.busy_s * 1.1161 / 3600 * found.prefill.devices
    second = found.decode.use.busy_s * 0.77803 / 3600 * found.decode.devices
    assert found.usd_per_million_tokens == pytest.approx((first + second) / 4608 * 1e6, rel=1e-3)
    assert found.decode_per_prefill == pytest.approx(
        found.decode.use.busy_s / found.prefill.use.busy_s
    )


INTERACTIVE = LatencyTargets(ttft_s=0.250, tpot_s=0.020)


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3-70b"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("targets", [INTERACTIVE, LatencyTargets()])
def test_g9_with_long_answers_h100_gaudi3_is_about_b200_b200_as_the_paper_finds(
    model, precision, targets
):
    asked = question(512, 4096, model, precision=precision, targets=targets)
    found = pairs(asked, "h100::gaudi3", "b200::b200", "b200::gaudi3")
    assert found["h100::gaudi3"] / found["b200::b200"] == pytest.approx(1.05, abs=0.15)
    assert found["b200::gaudi3"] >= found["h100::gaudi3"] > 1.4


def test_g9_with_long_prompts_it_is_not_since_h100_is_the_dearer_at_prefill():
    asked = question(4096, 512, "llama-3-70b", targets=INTERACTIVE)
    found = pairs(asked, "h100::gaudi3", "b200::b200")
    assert found["h100::gaudi3"] < 0.75 * found["b200::b200"]


def test_g9_a_side_that_is_too_slow_in_every_layout_rules_a_pair_out():
    found = pairs(question(4096, 512, "llama-3-70b", targets=INTERACTIVE), "a40::a40")
    assert found == {"a40::a40": None}
    nothing = LatencyTargets(tpot_s=1e-6)
    assert pairs(question(512, 512, targets=nothing), "b200::b200") == {"b200::b200": None}


def test_g6_a_larger_instance_is_chosen_only_where_it_pays():
    h100 = FOUND.accelerator_named("h100")
    slow = pair(question(512, 4096), h100, h100)
    quick = pair(question(512, 4096, targets=LatencyTargets(tpot_s=0.005)), h100, h100)
    assert slow.prefill.devices == 1
    assert quick.decode.tensor > slow.decode.tensor
    assert quick.usd_per_million_tokens > slow.usd_per_million_tokens
    assert not math.isinf(quick.link_gbit_s)
