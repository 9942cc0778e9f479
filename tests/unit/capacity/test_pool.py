"""How many of what: sums by hand, predictions in known queues, and the choice."""

import math
from functools import cache
from statistics import NormalDist

import msgspec
import pytest

from kairos.capacity.engine_rates import EngineRates, layouts
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.hardware_plan import HardwareQuestion, plan_hardware, question_calls
from kairos.capacity.instance_kinds import HardwareOffer, instance_kinds
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.ownership import Terms
from kairos.capacity.pool import CallKind, InstanceKind, PoolProblem
from kairos.capacity.prediction import Predictor, Traffic, loaded
from kairos.capacity.serving import LatencyTargets, Phases
from kairos.core import CallShape, SetupError

FOUND = load_catalogue()
REPLACE = msgspec.structs.replace
# A prompt takes 90 ms beside what a step takes: 10 ms, and 1 ms for each of ten sequences.
RATES = EngineRates(
    rests_on="a test", measured=True, kv_tokens=1e6, max_num_seqs=10,
    fixed_s=0.010, prefill_token_s=0.0001, decode_seq_s=0.001,
)  # fmt: skip
SHAPE = CallShape(prompt=900, answer=50)
CALL = CallKind(name="a", shape=SHAPE, per_s=10.0)


def kind(name, phases=Phases.BOTH, usd=1.0, rates=RATES, **more):
    return InstanceKind(
        name=name, device=name, phases=phases, rates=rates, usd_per_hour=usd, **more
    )


def test_as_many_calls_decode_at_once_as_arrive_meanwhile():
    state = loaded(kind("d", Phases.DECODE), 1, [Traffic(shape=SHAPE, per_s=5.0)])
    # n that decode are followed by n + 1 at 5 a second, and by n - 1 at n / 50 / (0.010 + 0.001 n):
    # a negative binomial of 11 and 1/4
    assert state.batch == pytest.approx(11 / 3, rel=1e-3)
    assert state.tpot_s == pytest.approx(state.batch / 250, rel=1e-4)
    assert state.utilisation == pytest.approx(5 * 50 * 0.020 / 10)


def test_prompts_slow_down_those_that_decode_beside_them():
    state = loaded(kind("x"), 1, [Traffic(shape=SHAPE, per_s=2.0)])
    # t = 0.010 + 0.001 * 2 * 50 t + 2 t * 0.090; each call meets itself, a tenth of an empty step
    assert state.tpot_s == pytest.approx(1.1 * 0.010 / (1 - 0.1 - 0.18), rel=1e-3)
    assert state.batch == pytest.approx(2 * 50 * state.tpot_s)
    assert state.utilisation == pytest.approx(2 * 0.19)


def test_prompts_wait_for_those_before_them_on_instances_of_their_own():
    state = loaded(kind("p", Phases.PREFILL), 1, [Traffic(shape=SHAPE, per_s=5.0)])
    busy = 0.82 / 9
    assert state.utilisation == pytest.approx(5 * busy)
    assert state.wait_s == pytest.approx(5 * busy**2 / 2 / (1 - 5 * busy))  # M/D/1
    assert loaded(kind("p", Phases.PREFILL), 0, [Traffic(shape=SHAPE, per_s=5.0)]).wait_s == 0.0


def test_too_much_to_do_has_no_steady_state():
    for phases in Phases:
        assert loaded(kind("x", phases), 1, [Traffic(shape=SHAPE, per_s=11.0)]) is None
        assert loaded(kind("x", phases), 4, [Traffic(shape=SHAPE, per_s=11.0)]) is not None


def workflow(*calls):
    return [
        ObservedCall(agent="a", prompt_tokens=900, answer_tokens=answer, after=after, gap_s=gap)
        for answer, after, gap in calls
    ]


def idle_times(workflows):
    asked = PoolProblem(calls=(REPLACE(CALL, per_s=1e-9),), instances=(kind("x"),))
    return Predictor(asked, workflows).predicted({"x": 1}, {"a": {"x": 1.0}})


def test_a_workflow_takes_as_long_as_its_critical_path():
    fork = workflow((10, (), 0.0), (100, (0,), 0.0), (50, (0,), 2.0), (10, (1, 2), 0.0))
    found = idle_times([fork])
    # each 0.1 s and 11 ms a token, and half a step before it; the longer way is that with the gap
    assert found.mean_s == pytest.approx(3 * 0.1 + 0.77 + 2.0 + 3 * 0.0055, rel=1e-3)
    assert found.p95_s == pytest.approx(found.p50_s, rel=1e-5)


def test_the_95th_percentile_is_that_of_the_workflows():
    found = idle_times([workflow((n, (), 0.0)) for n in range(100, 10_100, 100)])
    assert found.p95_s == pytest.approx(9500 * 0.011 + 0.105, rel=1e-3)
    assert found.p50_s == pytest.approx(5000 * 0.011 + 0.105, rel=1e-3)


def question(rate=5.0, names=("h100", "gaudi3"), **more):
    workflows = [
        [
            ObservedCall(agent="plan", prompt_tokens=2000, answer_tokens=100 + i),
            ObservedCall(agent="write", prompt_tokens=500, answer_tokens=900 + i, after=(0,)),
        ]
        for i in range(40)
    ]
    offer = HardwareOffer(
        devices=[FOUND.accelerator_named(name) for name in names],
        model=FOUND.model_named("llama-3-8b"),
        most_devices=2,
        terms=Terms(),
    )
    return HardwareQuestion(workflows=workflows, workflows_per_s=rate, offer=offer, **more)


@cache
def free_plan():
    """Return the plan without target and budget."""
    return plan_hardware(question())


def test_the_cheapest_pool_within_the_target_is_chosen():
    free = free_plan()
    assert free.met
    assert free.chosen is free.front[0]
    costs = [each.usd_per_hour for each in free.front]
    times = [each.prediction.p95_s for each in free.front]
    assert costs == sorted(costs)
    assert times == sorted(times, reverse=True)
    between = (times[-1] + times[-2]) / 2
    held = plan_hardware(question(p95_s=between))
    assert held.met
    assert held.chosen.prediction.p95_s <= between
    assert costs[-2] < held.chosen.usd_per_hour <= costs[-1]


def test_a_target_that_nothing_meets_has_the_quickest_and_says_so():
    found = plan_hardware(question(p95_s=0.001))
    assert not found.met
    assert found.chosen is found.front[-1]
    assert (found.in_target, found.in_budget) == (None, found.front[-1])


def test_what_is_over_budget_has_the_pool_that_exceeds_target_and_budget_least():
    free = free_plan()
    cheap, quick = free.front[0], free.front[-1]
    poor = plan_hardware(question(p95_s=quick.prediction.p95_s, usd_per_hour=cheap.usd_per_hour))
    assert not poor.met
    assert poor.in_target.usd_per_hour == pytest.approx(quick.usd_per_hour)
    assert poor.in_budget.prediction.p95_s == pytest.approx(cheap.prediction.p95_s)

    def excess(each):
        usd = each.usd_per_hour / cheap.usd_per_hour
        return max(usd, each.prediction.p95_s / quick.prediction.p95_s)

    assert excess(poor.chosen) == min(map(excess, poor.front))
    nothing = plan_hardware(question(usd_per_hour=0.01))
    assert (nothing.met, nothing.in_budget) == (False, None)
    assert nothing.chosen is nothing.front[0]


def chat(rate, p95_s, names=None, calls=1, **offer):
    """Calls of 700 + 250 tokens, answers as lengths of chats are."""
    known = [each for each in FOUND.accelerator if each.kind == "accelerator"]
    even = [(each + 0.5) / 400 for each in range(400)]
    workflows = [
        [
            ObservedCall(
                agent="chat",
                prompt_tokens=700,
                answer_tokens=max(1, round(answer)),
                after=(at - 1,) if at else (),
            )
            for at in range(calls)
        ]
        for answer in (
            250 * math.exp(0.62 * NormalDist().inv_cdf(share) - 0.62**2 / 2) for share in even
        )
    ]
    return HardwareQuestion(
        workflows=workflows,
        workflows_per_s=rate,
        p95_s=p95_s,
        most_kinds=3,
        offer=HardwareOffer(
            devices=[each for each in known if names is None or each.name in names],
            model=FOUND.model_named("llama-3-8b"),
            **offer,
        ),
    )


def test_a_chat_within_12_s_has_one_a100_and_no_pair_that_costs_more():
    found = plan_hardware(chat(2.0, 12.0))
    assert found.met
    assert found.chosen.pool.counts == {"a100": 1}
    assert found.chosen.usd_per_hour == pytest.approx(0.428, abs=1e-3)
    assert found.chosen.prediction.p95_s == pytest.approx(6.7, abs=0.2)


def test_two_gaudi_3_are_found_where_one_is_late_and_half_the_load_is_in_time_on_one():
    whole = {"names": ("gaudi3",), "calls": 2, "most_devices": 1, "pairs": False}
    alone = plan_hardware(chat(5.0, math.inf, **whole)).front[0]
    half = plan_hardware(chat(2.5, math.inf, **whole)).front[0]
    assert alone.pool.counts == half.pool.counts == {"gaudi3": 1}
    between = (alone.prediction.p95_s + half.prediction.p95_s) / 2
    found = plan_hardware(chat(5.0, between, **whole))
    assert found.met
    assert found.chosen.pool.counts == {"gaudi3": 2}
    assert found.chosen.usd_per_hour == pytest.approx(1.556, abs=1e-3)


def test_agents_of_two_models_have_a_pool_of_all_of_them():
    asked = question()
    other = FOUND.model_named("qwen2.5-7b")
    offer = REPLACE(asked.offer, models={"write": other})
    found = plan_hardware(REPLACE(asked, offer=offer))
    assert {kind.model for kind in found.chosen.kinds} == {"llama-3-8b", "qwen2.5-7b"}
    for call, shares in found.chosen.pool.routes.items():
        models = {kind.model for kind in found.chosen.kinds if kind.name in shares}
        assert models == {offer.model_of(call).name}


def test_g4_a_price_of_lateness_decides_between_cost_and_time():
    target = free_plan().front[-1].prediction.p95_s
    assert plan_hardware(
        question(p95_s=target, usd_per_s_late=0.0)
    ).chosen.usd_per_hour == pytest.approx(free_plan().front[0].usd_per_hour)
    assert plan_hardware(question(p95_s=target, usd_per_s_late=1e3)).met


def test_a_workflow_costs_the_hour_over_the_workflows_of_it():
    chosen = free_plan().chosen
    assert chosen.usd_per_workflow == pytest.approx(chosen.usd_per_hour / 18_000)
    tokens = 5.0 * (2000 + 119.5 + 500 + 919.5) * 3600
    assert chosen.usd_per_million_tokens == pytest.approx(chosen.usd_per_hour / tokens * 1e6)


def test_devices_that_cannot_be_used_are_named_with_the_reason():
    found = plan_hardware(question(names=("h100", "epyc-9654")))
    assert set(found.left_out) == {"epyc-9654"}
    with pytest.raises(SetupError, match="nothing can serve llama-3-8b: epyc-9654 is a processor"):
        plan_hardware(question(names=("epyc-9654",)))


def test_what_has_no_price_as_bought_is_planned_as_rented():
    asked = question(names=("h100", "l40s"))
    paid = {
        each.device: (each.paid, each.usd_per_hour)
        for each in instance_kinds(asked.offer, question_calls(asked)).kinds
        if each.rates.devices == 1
    }
    assert paid["l40s"] == ("rented", 1.40)
    assert paid["h100"][0] == "bought"


def test_what_was_measured_takes_the_place_of_what_is_derived():
    offer = REPLACE(question().offer, measured={"h100": RATES}, pairs=False)
    kinds = {each.name: each for each in instance_kinds(offer, question_calls(question())).kinds}
    assert kinds["h100"].rates.measured
    assert not kinds["gaudi3"].rates.measured
    assert all(each.phases is Phases.BOTH for each in kinds.values())


def test_targets_of_calls_hold_for_every_kind_of_instance():
    asked = question(targets=LatencyTargets(ttft_s=0.05, tpot_s=0.008))
    found = plan_hardware(asked)
    assert found.chosen.usd_per_hour > free_plan().chosen.usd_per_hour
    with pytest.raises(SetupError, match="no pool of this hardware can serve"):
        plan_hardware(question(targets=LatencyTargets(tpot_s=1e-6)))
    assert math.isfinite(found.chosen.prediction.p95_s)


def test_all_layouts_that_serve_a_call_are_offered():
    offer = REPLACE(question().offer, most_devices=8, pairs=False)
    found = instance_kinds(offer, question_calls(question())).kinds
    for device in offer.devices:
        of_device = [kind for kind in found if kind.device == device.name]
        assert len(of_device) == len([*layouts(device)])


def test_g5_an_agents_calls_go_to_several_kinds_unless_the_question_says_otherwise():
    asked = chat(60.0, math.inf, ("a40", "a100", "gaudi3"), most_devices=1, pairs=False)
    split, whole = plan_hardware(asked), plan_hardware(REPLACE(asked, split=False))
    assert whole.chosen.pool.routes == {"chat": {"gaudi3": 1.0}}
    assert set(split.chosen.pool.routes["chat"]) == {"gaudi3", "a40"}
    assert split.chosen.usd_per_hour < 0.95 * whole.chosen.usd_per_hour
