from collections import Counter
from itertools import pairwise

import pytest
from msgspec.structs import replace
from rich.console import Console

from experiments import placements_vllm_show as show
from experiments.fidelity_cpu import Cores
from experiments.placements_vllm import BASELINE, DEFAULT, FULL, QUICK, in_turn, verdict
from experiments.placements_vllm_counts import Counts, Sizes, measured_sizes, read_counts
from experiments.placements_vllm_rows import Row, by_placement, slower
from experiments.placements_vllm_run import LIMITS, POLICY
from experiments.placements_vllm_workload import MAX_CONTEXT, MIX, offered
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import SetupError

METRICS = """
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="small"} 7.0
vllm:num_requests_running{engine="0",model_name="small"} 2.0
vllm:num_requests_waiting{engine="0",model_name="small"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="small"} 1400.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="small",source="local_compute"} 1.2e+03
vllm:prompt_tokens_by_source_total{engine="0",model_name="small",source="local_cache_hit"} 200.0
vllm:prompt_tokens_cached_total{engine="0",model_name="small"} 200.0
vllm:generation_tokens_total{engine="0",model_name="small"} 300.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="small"} 9.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="small"} 1.0
vllm:estimated_write_bytes_per_gpu_total{engine="0",model_name="small"} 7.3e+07
"""

# Of vLLM 0.32 and the model `small`, as it told them of a call alone.
LONG_PROMPT = Counts(prompt_tokens=500, generated_tokens=1, ended=1, written_bytes=22_544_384)
LONG_ANSWER = Counts(prompt_tokens=10, generated_tokens=100, ended=1, written_bytes=6_549_504)
OTHER = Counts(prompt_tokens=100, generated_tokens=50, ended=1, written_bytes=7_532_544)


def row(placement="round-robin", repetition=1, e2e=10.0, **given):
    figures = {"mean": e2e, "p50": e2e, "p90": e2e, "p95": e2e, "p99": 2 * e2e}
    fields = {
        "commit": "abc",
        "repetition": repetition,
        "place": 1,
        "placement": placement,
        "policy": POLICY,
        "model": "mid",
        "limits": LIMITS,
        "rate_per_s": 5.0,
        "workflows": 20,
        "calls": 50,
        "e2e_s": figures,
        "call_s": figures,
        "ttft_s": figures,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "needed_tokens": 1000,
        "cached_tokens": 0,
        "elapsed_s": 20.0,
        "late_starts": 0,
        "prompt_tokens_off": 0,
        "cores": Cores(engines=1.9, kairos=0.1, client=0.05, others=0.02),
    }
    return Row(**fields | given)


def test_what_an_engine_counts_is_read_from_its_metrics():
    assert read_counts(METRICS) == Counts(
        preemptions=7,
        prompt_tokens=1200,
        cached_tokens=200,
        generated_tokens=300,
        ended=10,
        written_bytes=73_000_000,
        running=2,
        waiting=1,
    )


def test_an_engine_that_does_not_tell_what_it_computes_is_refused():
    silent = "\n".join(line for line in METRICS.splitlines() if "write_bytes" not in line)
    with pytest.raises(SetupError, match="vllm:estimated_write_bytes_per_gpu_total"):
        read_counts(silent)


def test_counts_are_of_all_engines_and_between_two_moments():
    before, after = Counts(preemptions=1, ended=2), Counts(preemptions=5, ended=9)
    assert sum([before, after], Counts()) == Counts(preemptions=6, ended=11)
    assert after - before == Counts(preemptions=4, ended=7)


def test_an_engine_is_idle_when_nothing_runs_and_nothing_waits():
    assert Counts(preemptions=3).is_idle
    assert not Counts(running=1).is_idle
    assert not Counts(waiting=1).is_idle


def test_the_size_of_a_token_follows_from_two_calls():
    sizes = measured_sizes([LONG_PROMPT, LONG_ANSWER])
    assert sizes == Sizes(of_token=45_056, of_logits=16_384)
    assert sizes.recomputed_tokens(OTHER) == 0


def test_bytes_that_are_counted_otherwise_are_not_believed():
    with pytest.raises(SetupError, match="otherwise than known"):
        measured_sizes([LONG_PROMPT, replace(LONG_ANSWER, written_bytes=6_549_505)])


def test_what_was_computed_beyond_prompts_and_answers_was_computed_again():
    sizes = measured_sizes([LONG_PROMPT, LONG_ANSWER])
    again = replace(OTHER, written_bytes=OTHER.written_bytes + 120 * sizes.of_token)
    assert sizes.recomputed_tokens(again) == 120
    assert sizes.recomputed_tokens(again + OTHER) == 120


def test_every_placement_is_compared_and_ci_compares_three():
    assert set(FULL.placements) == set(PLACEMENTS)
    assert FULL.placements[0] == QUICK.placements[0] == DEFAULT
    assert set(QUICK.placements) == {DEFAULT, BASELINE, "least-kv"}


def test_the_order_of_the_runs_is_another_in_each_repetition_and_never_in_doubt():
    names = ["a", "b", "c", "d", "e", "f"]
    orders = [in_turn(names, repetition) for repetition in range(1, 9)]
    assert all(sorted(order) == names for order in orders)
    assert len({tuple(order) for order in orders}) > 4
    assert orders == [in_turn(names, repetition) for repetition in range(1, 9)]


def test_placements_are_given_the_same_and_repetitions_are_not():
    first, again, other = offered(60, 16.0, 1), offered(60, 16.0, 1), offered(60, 16.0, 2)
    assert first == again
    assert [each.at_us for each in first] != [each.at_us for each in other]
    assert [each.workflow.id for each in first] != [each.workflow.id for each in other]
    assert all(a.at_us <= b.at_us for a, b in pairwise(first))
    assert len({each.workflow.id for each in first}) == 60


def test_every_run_has_the_applications_in_the_same_proportion():
    for repetition in (1, 2, 3):
        apps = Counter(each.workflow.app for each in offered(60, 16.0, repetition))
        assert apps == {app: 10 * weight for app, weight in MIX.items()}


def test_every_call_fits_an_engine_and_few_fit_together():
    kv_tokens = (LIMITS.kv_blocks - 1) * 32
    sizes = [
        call.prompt_tokens + call.completion_tokens
        for repetition in range(1, 9)
        for each in offered(60, 16.0, repetition)
        for call in each.workflow.calls
    ]
    assert max(sizes) <= MAX_CONTEXT <= LIMITS.max_model_len <= kv_tokens
    assert kv_tokens < LIMITS.max_num_seqs * sum(sizes) / len(sizes) / 2


def test_a_repetition_that_was_broken_off_is_not_compared():
    rows = [row("a"), row("b"), row("b", 2), row("a", 2), row("a", 3)]
    found = by_placement(rows)
    assert {name: [each.repetition for each in of] for name, of in found.items()} == {
        "a": [1, 2],
        "b": [1, 2],
    }


def test_who_is_slower_is_told_on_the_same_arrivals():
    bursty = [5.0, 50.0, 500.0, 5000.0]
    ours = [row("a", n, e2e) for n, e2e in enumerate(bursty)]
    theirs = [row("b", n, e2e - 1) for n, e2e in enumerate(bursty)]
    more = slower(ours, theirs)
    assert (more.mean, more.low, more.high) == pytest.approx((1, 1, 1))
    assert slower(ours[:1], theirs[:1]) is None


@pytest.mark.parametrize(
    ("baseline", "ours", "status"), [(50, 5, 0), (50, 6, 1), (50, 0, 0), (2, 0, 1), (0, 0, 1)]
)
def test_the_verdict_is_on_preemptions_of_enough(baseline, ours, status):
    if DEFAULT == BASELINE:
        pytest.skip("nothing to compare the default with")
    rows = [row(preemptions=baseline), row(DEFAULT, preemptions=ours, e2e=99.0)]
    assert verdict(rows, Console(quiet=True)) == status


def test_figures_tell_what_falls_short_as_it_is():
    rows = [
        *(row("round-robin", n, 10 + n, preemptions=50) for n in range(8)),
        *(row("least-kv", n, 8.5 + n + n % 2, preemptions=9) for n in range(8)),
        *(row("ours", n, 9 + n, preemptions=6) for n in range(8)),
    ]
    preempted, *times = show.figures(rows, "ours")
    assert (preempted.value, preempted.met) == (0.12, False)
    slower_than = {each.name.split(" less ")[1].split(",")[0]: each for each in times}
    assert slower_than["round-robin"].met
    assert slower_than["round-robin"].value == pytest.approx(-1)
    assert slower_than["least-kv"].met  # as often quicker as slower
    assert not show.figures(
        [
            replace(each, e2e_s={"mean": 9.0, "p99": 9.0}) if each.placement == "least-kv" else each
            for each in rows[8:]
        ],
        "ours",
    )[0].met


def test_what_is_shown_has_every_placement_and_survives_a_single_repetition(tmp_path):
    rows = [row("round-robin", preemptions=40, recomputed_tokens=250), row("ours", e2e=8.0)]
    console = Console(width=160)
    with console.capture() as shown:
        console.print(show.table(rows, "ours"))
    assert "0.800" in shown.get()
    assert "20.0%" in shown.get()
    assert [each.value for each in show.figures(rows, "ours")] == [0.0, None]
    assert "40 preemptions of 50 calls" in show.line(rows[0])
    show.draw(rows, tmp_path / "picture")
    assert (tmp_path / "picture.svg").stat().st_size > 1000
    first = (tmp_path / "picture.svg").read_bytes()
    show.draw([replace(each) for each in rows], tmp_path / "picture")
    assert (tmp_path / "picture.svg").read_bytes() == first
