"""Whatever is planned: the graph has the work that was seen, and brute force agrees."""

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import e61_hardware_regret
from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import transfer_s
from kairos.capacity.hardware_plan import plan_hardware
from kairos.capacity.lowering import ObservedCall, WorkKind, lower_application
from kairos.capacity.pool import CallKind, InstanceKind, PoolProblem
from kairos.capacity.prediction import LEVELS, Predictor, _fixed_point
from kairos.capacity.serving import Phases
from kairos.core import CallShape, StepCost
from tests.support.examples import examples

CALLS = st.lists(
    st.tuples(st.sampled_from(["plan", "act", "judge"]), st.integers(1, 500), st.integers(1, 99)),
    min_size=1,
    max_size=20,
)


@given(st.lists(CALLS, min_size=1, max_size=5))
def test_g1_a_lowered_graph_has_exactly_the_calls_and_tokens_that_were_seen(workflows):
    observed = [
        [
            ObservedCall(
                agent=agent,
                prompt_tokens=prompt,
                answer_tokens=answer,
                after=(position - 1,) if position else (),
            )
            for position, (agent, prompt, answer) in enumerate(calls)
        ]
        for calls in workflows
    ]
    found = lower_application(observed, lambda _agent: 1000.0)
    calls = [call for each in observed for call in each]
    count = len(workflows)
    for kind, tokens in ((WorkKind.PREFILL, "prompt_tokens"), (WorkKind.DECODE, "answer_tokens")):
        nodes = [node for node in found.nodes if node.kind is kind]
        assert sum(node.runs for node in nodes) == pytest.approx(len(calls) / count)
        assert sum(node.runs * node.tokens for node in nodes) == pytest.approx(
            sum(getattr(call, tokens) for call in calls) / count
        )
    places = {node.name: at for at, node in enumerate(found.nodes)}
    assert all(places[edge.source] < places[edge.target] for edge in found.edges)
    assert all(0 < edge.share <= 1 for edge in found.edges)


@pytest.mark.parametrize("seed", [1, 4, 5, 9, 10, 13, 15, 18])
def test_brute_force_finds_no_pool_that_is_2_percent_cheaper(seed):
    row = e61_hardware_regret.judged(e61_hardware_regret.drawn(seed))
    assert e61_hardware_regret.regret(row) <= e61_hardware_regret.AIM, row


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 60))
def test_brute_force_finds_no_pool_that_is_2_percent_cheaper_in_40_more_cases(seed):
    """Falls short: of all 200 cases of the experiment one pool is 4.5 % cheaper."""
    row = e61_hardware_regret.judged(e61_hardware_regret.drawn(seed))
    assert e61_hardware_regret.regret(row) <= e61_hardware_regret.AIM, row


def never_cheaper(seed):
    """A tighter target, and a higher rate."""
    asked = e61_hardware_regret.drawn(seed).question
    before = plan_hardware(asked)
    for factor in (0.95, 0.8, 0.6):
        tighter = plan_hardware(msgspec.structs.replace(asked, p95_s=asked.p95_s * factor))
        assert not tighter.met or tighter.chosen.usd_per_hour >= before.chosen.usd_per_hour
    for factor in (1.05, 1.3, 2.0):
        more = msgspec.structs.replace(asked, workflows_per_s=asked.workflows_per_s * factor)
        busier = plan_hardware(more)
        # Of pools that cost the same to 0.2 % one is kept.
        least = before.chosen.usd_per_hour * (1 - 0.004)
        assert not busier.met or (before.met and busier.chosen.usd_per_hour >= least)


@pytest.mark.parametrize("seed", [4, 5, 9, 10, 14, 15, 19, 20])
def test_a_tighter_target_or_a_higher_rate_is_never_cheaper(seed):
    never_cheaper(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 40))
def test_a_tighter_target_or_a_higher_rate_is_never_cheaper_in_20_cases(seed):
    never_cheaper(seed)


@st.composite
def workloads(draw):
    """Workflows of drawn shape, and a pool with drawn rates where agents have drawn places."""
    agents = ("a", "b", "c")
    workflows = [
        [
            ObservedCall(
                agent=draw(st.sampled_from(agents)),
                prompt_tokens=(prompt := draw(st.integers(1, 20_000))),
                answer_tokens=draw(st.integers(1, 900)),
                cached_tokens=draw(st.integers(0, prompt)),
                gap_s=draw(st.sampled_from([0.0, 0.0, 1.5])),
                after=tuple(
                    sorted(draw(st.sets(st.integers(0, at - 1), max_size=2))) if at else ()
                ),
            )
            for at in range(draw(st.integers(1, 5)))
        ]
        for _ in range(draw(st.integers(1, 6)))
    ]
    rates = EngineRates(
        rests_on="drawn",
        measured=False,
        stages=draw(st.sampled_from([1, 2])),
        kv_tokens=1e7,
        fixed_s=0.001,
        weights_s=draw(st.sampled_from([0.0, 0.004])),
        prefill_token_s=1e-6,
        decode_seq_s=1e-5,
        kv_token_s=1e-9,
        attention_s=1e-12,
        exchange_s=1e-7,
        expert_share=0.9,
        active_share=draw(st.sampled_from([1.0, 0.1])),
        call_s=0.002,
    )
    ways = [("both",), ("prefill", "decode")]
    routes = {agent: dict.fromkeys(draw(st.sampled_from(ways)), 1.0) for agent in agents}
    return workflows, rates, routes


@examples(60)
@given(workloads())
def test_workflows_take_as_long_as_their_calls_one_by_one(drawn):
    workflows, rates, routes = drawn
    kinds = [
        InstanceKind(name=str(p), device="d", phases=p, rates=rates, usd_per_hour=1.0)
        for p in Phases
    ]
    calls = [
        CallKind(name=name, shape=CallShape(prompt=900, answer=50, cached=100), per_s=0.5)
        for name in routes
    ]
    problem = PoolProblem(calls=calls, instances=kinds, kv_bytes_per_token=1e5)
    predictor = Predictor(problem, workflows)
    counts = dict.fromkeys(sorted({n for shares in routes.values() for n in shares}), 2)
    found = predictor.predicted(counts, routes)
    assert found is not None

    def call_s(call, level):
        seconds = 0.0
        for name in routes[call.agent]:
            state = found.instances[name]
            seconds += state.wait_s
            if name != "decode":
                new = call.prompt_tokens - call.cached_tokens
                batch = state.batch / rates.stages
                pairs = StepCost.attended_pairs(new, call.cached_tokens)
                seconds += rates.call_s + rates.beside_s(batch, state.context, new, pairs)
            else:
                seconds += transfer_s(1e5 * call.prompt_tokens, problem.link)
            if name != "prefill":
                longer = max(0.0, 1 + state.spread * level)
                seconds += call.answer_tokens * state.tpot_s * longer
        return seconds

    lasts = []
    for each, level in itertools.product(workflows, LEVELS):
        ends = []
        for call in each:
            begins = max((ends[before] for before in call.after), default=0.0) + call.gap_s
            ends.append(begins + call_s(call, level))
        lasts.append(max(ends))
    assert found.mean_s == pytest.approx(sum(lasts) / len(lasts))
    assert found.p95_s == pytest.approx(sorted(lasts)[math.ceil(0.95 * len(lasts)) - 1])


@examples(40)
@given(workloads(), st.integers(1, 7), st.permutations(["both", "prefill", "decode"]))
def test_the_order_in_which_kinds_are_named_does_not_matter(drawn, eighths, order):
    problem, workflows, shares = split_pool(drawn, eighths)
    counts = dict.fromkeys(shares, 2)
    first = Predictor(problem, workflows).predicted(counts, dict.fromkeys("abc", shares))
    other = {name: shares[name] for name in order}
    second = Predictor(problem, workflows).predicted(
        {name: counts[name] for name in order}, dict.fromkeys("abc", other)
    )
    assert first == second


POOLS = st.tuples(st.integers(1, 7), st.tuples(*[st.integers(1, 3)] * 3))


@examples(40)
@given(workloads(), st.lists(POOLS, min_size=2, max_size=6))
def test_what_was_predicted_before_does_not_matter(drawn, pools):
    problem, workflows, _ = split_pool(drawn, 1)
    used = Predictor(problem, workflows)
    for eighths, numbers in pools:
        _, _, shares = split_pool(drawn, eighths)
        counts, routes = dict(zip(shares, numbers, strict=True)), dict.fromkeys("abc", shares)
        new = Predictor(problem, workflows)
        assert used.predicted(counts, routes) == new.predicted(counts, routes)
        more, less = (each.scaled(2.0).predicted(counts, routes) for each in (used, new))
        assert more == less


def split_pool(drawn, eighths):
    """Return a problem, workflows, and shares of one kind for each phase and for both."""
    workflows, rates, _ = drawn
    kinds = [
        InstanceKind(
            name=str(p),
            device="d",
            phases=p,
            rates=msgspec.structs.replace(rates, fixed_s=0.001 * number),
            usd_per_hour=1.0,
        )
        for number, p in enumerate(Phases, start=1)
    ]
    shape = CallShape(prompt=900, answer=50, cached=100)
    calls = [CallKind(name=name, shape=shape, per_s=0.5) for name in "abc"]
    problem = PoolProblem(calls=calls, instances=kinds, kv_bytes_per_token=1e5)
    share = eighths / 8
    return problem, workflows, {"both": share, "prefill": 1 - share, "decode": 1 - share}


@examples(40)
@given(st.floats(0.0, 0.9), st.floats(0.1, 3.0), st.floats(0.0, 2.0))
def test_a_fixed_point_is_found_where_there_is_one(slope, height, bend):
    def grows(x):
        return height + slope * x + 0.01 * bend * x * x

    found = _fixed_point(grows)
    a, b = 0.01 * bend, slope - 1
    inside = b * b - 4 * a * height
    if inside <= 0 and a:
        assert found is None
    elif inside > 1e-4:
        least = height / (1 - slope) if a < 1e-12 else (-b - math.sqrt(inside)) / (2 * a)
        if least < 50:
            assert found == pytest.approx(least, rel=1e-4)
