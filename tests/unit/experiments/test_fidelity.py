import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from experiments import fidelity_show as show
from experiments.e00_fidelity import _verdict
from experiments.fidelity_conditions import LOADS, PREEMPTING, PREFIXES, SATURATED, Row
from experiments.fidelity_cpu import Cores, Meter, cores
from experiments.fidelity_engines import ROOMY
from experiments.fidelity_errors import (
    MEAN_E2E,
    Sides,
    capacity_per_s,
    compare,
    error_percent,
    median_error,
)
from experiments.fidelity_model import simulate
from experiments.fidelity_workloads import LONG, PLAIN, SHARED, SYSTEM_TOKENS
from kairos.call_row import CallRow
from kairos.engine_profile import EngineProfile, StepCost
from kairos.model import SECOND, Request
from kairos.workload.prompt import length

PROFILE = EngineProfile(
    name="like mid on a core",
    source="by hand",
    measured=False,
    kv_tokens=1023 * 32,
    block_size=32,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_model_len=2048,
    call_us=5000,
    step=StepCost(fixed_us=15_000, prefill_token_us=410, decode_seq_us=750, kv_token_us=2.1),
)


def call(workflow, *, started, arrived, first, ended, tokens, cached=0, preempted=None):
    """Instants in seconds."""
    request = Request(
        id=f"{workflow}/{arrived}",
        workflow_id=workflow,
        workflow_started_at=started * SECOND,
        arrived_at=arrived * SECOND,
        prompt_tokens=10,
        completion_tokens=tokens,
    )
    return CallRow(
        request,
        first_token_at=first * SECOND,
        ended_at=ended * SECOND,
        outcome="finished",
        completion_tokens=tokens,
        cached_tokens=cached,
        preemptions=preempted,
    )


def row(condition="80% load", seed=1, real=10.0, model=11.0):
    return Row(
        commit="abc",
        condition=condition,
        seed=seed,
        policy="kairos",
        placement="least-kv",
        workload="plain",
        workflows=2,
        calls=3,
        load=0.8,
        capacity_per_s=2.0,
        limits=ROOMY,
        profile=PROFILE,
        cores=Cores(engines=1.9, kairos=0.04, client=0.03, others=0.01),
        late_starts=0,
        prompt_tokens_off=0,
        sides={MEAN_E2E: Sides(real, model), "token, p95 s": Sides(0.02, None)},
    )


def test_the_sides_are_compared_by_what_a_client_saw():
    real = [
        call("a", started=0, arrived=0, first=1, ended=3, tokens=5, cached=32),
        call("a", started=0, arrived=4, first=5, ended=9, tokens=5),
        call("b", started=2, arrived=2, first=3, ended=3, tokens=1),
    ]
    model = [
        call("a", started=0, arrived=0, first=2, ended=4, tokens=5, cached=32, preempted=2),
        call("a", started=0, arrived=5, first=7, ended=9, tokens=5, preempted=1),
        call("b", started=2, arrived=2, first=5, ended=5, tokens=1, preempted=0),
    ]
    found = compare(real, model, real_preemptions=4)
    assert found[MEAN_E2E] == Sides((9 + 1) / 2, (9 + 3) / 2)
    assert found["call, mean s"] == Sides((3 + 5 + 1) / 3, (4 + 4 + 3) / 3)
    assert found["first token, mean s"] == Sides(1, (2 + 2 + 3) / 3)
    assert found["token, mean s"] == Sides((2 / 4 + 4 / 4) / 2, 2 / 4)  # of answers that have two
    assert found["preemptions"] == Sides(4, 3)
    assert found["cached tokens"] == Sides(32, 32)


def test_a_workflow_ends_with_the_last_of_its_calls_in_whatever_order_they_are_told():
    rows = [
        call("a", started=0, arrived=0, first=1, ended=9, tokens=5),
        call("a", started=0, arrived=1, first=2, ended=3, tokens=5),
    ]
    assert compare(rows, rows[::-1], real_preemptions=0)[MEAN_E2E] == Sides(9, 9)


def test_a_side_compared_with_itself_is_without_error():
    rows = simulate(PROFILE, 2, PLAIN.at_rate(2.0, 10.0, 1), policy="kairos", placement="least-kv")
    found = compare(rows, rows, real_preemptions=0)
    assert {error_percent([sides]) for sides in found.values()} == {0.0}


def test_the_error_is_signed_and_over_runs_together():
    assert error_percent([Sides(10, 11)]) == pytest.approx(10)
    assert error_percent([Sides(10, 9), Sides(10, 13)]) == pytest.approx(10)
    assert error_percent([Sides(0, 0)]) == 0
    assert error_percent([Sides(0, 3)]) is None
    assert error_percent([Sides(1, 1), Sides(None, 1)]) is None
    assert median_error([-9, 1, 3, None]) == 3


def test_capacity_is_what_ends_while_the_engines_are_full():
    def rows(ends):
        return [
            call(f"w{n}", started=0, arrived=0, first=1, ended=end, tokens=5)
            for n, end in enumerate(ends)
        ]

    steady = [10 + 2 * n for n in range(16)]  # two slots empty themselves after that
    assert capacity_per_s(rows([*steady, 42, 100]), slots=2) == pytest.approx(0.5)


def test_capacity_counts_what_was_done_of_workflows_that_end_later():
    done = [call(f"w{n}", started=0, arrived=0, first=1, ended=n, tokens=10) for n in (1, 2, 3)]
    half = [
        call("last", started=0, arrived=0, first=1, ended=3, tokens=5),
        call("last", started=0, arrived=3, first=4, ended=9, tokens=5),
    ]
    assert capacity_per_s([*done, *half], slots=2) == pytest.approx((2 + 0.5) / 2)


@pytest.mark.long
def test_the_capacity_measured_is_that_of_a_long_run():
    def measured(condition, seed):
        submissions = condition.submissions(0.0, seed)
        rows = simulate(PROFILE, 2, submissions, policy=condition.policy, placement="least-kv")
        return capacity_per_s(rows, 2 * PROFILE.max_num_seqs)

    long = measured(replace(SATURATED, at_once=600), 1)
    for seed in (1, 2, 3):
        assert measured(SATURATED, seed) == pytest.approx(long, rel=0.1)


def test_the_engines_are_full_as_long_as_the_capacity_is_measured():
    submissions = SATURATED.submissions(0.0, 1)
    rows = simulate(PROFILE, 2, submissions, policy=SATURATED.policy, placement="least-kv")
    slots = 2 * PROFILE.max_num_seqs
    last = {each.request.workflow_id: 0 for each in rows}
    for each in rows:
        last[each.request.workflow_id] = max(last[each.request.workflow_id], each.ended_at)
    ended = sorted(last.values())
    for at in ended[: len(ended) - slots]:
        running = [each for each in rows if each.dispatched_at <= at < each.ended_at]
        assert len(running) >= slots - 1, at / SECOND  # one has just ended


def test_short_runs_have_the_apps_in_the_proportion_of_long_ones():
    for seed in (1, 2, 3):
        apps = Counter(each.workflow.calls[0].agent for each in PLAIN.at_once(60, seed))
        assert apps == {"router": 30, "researcher": 20, "product_manager": 10}


@pytest.mark.long
@pytest.mark.parametrize("condition", [*LOADS, PREFIXES, PREEMPTING, SATURATED])
def test_both_sides_are_given_the_same_whenever_they_ask(condition):
    first, again = condition.submissions(2.0, 3), condition.submissions(2.0, 3)
    assert first == again
    assert first != condition.submissions(2.0, 4)
    assert len({each.workflow.id for each in first}) == len(first)
    assert all(a.at_us < b.at_us for a, b in pairwise(first))
    longest = max(c.prompt_tokens + c.completion_tokens for s in first for c in s.workflow.calls)
    assert longest < condition.limits.max_model_len
    assert longest < (condition.limits.kv_blocks - 1) * 32


def test_a_load_is_a_share_of_the_capacity():
    submissions = LOADS[0].submissions(4.0, 1)
    assert len(submissions) == 0.5 * 4.0 * LOADS[0].duration_s


def test_all_prompts_of_an_agent_begin_with_its_instructions():
    prompts = {}
    for submission in SHARED.at_once(60, 1):
        for made, prompt in zip(
            submission.workflow.calls, submission.workflow.prompts, strict=True
        ):
            assert length(prompt) == made.prompt_tokens
            prompts.setdefault((made.app, made.agent), []).append(prompt[0])
    for first in prompts.values():
        assert {piece.name for piece in first} == {first[0].name}
        assert all(piece.tokens >= SYSTEM_TOKENS for piece in first)
    assert len({first[0].name for first in prompts.values()}) == len(prompts)


def test_runs_of_different_seeds_share_nothing():
    def names(seed):
        return {
            piece.name
            for each in SHARED.at_once(60, seed)
            for prompt in each.workflow.prompts
            for piece in prompt
        }

    assert not names(1) & names(2)


def test_the_workload_of_the_preempting_condition_preempts():
    profile = PREEMPTING.limits.of(PROFILE)
    rows = simulate(
        profile, 2, PREEMPTING.submissions(0.0, 1), policy="kairos", placement="least-kv"
    )
    assert sum(each.preemptions for each in rows) >= 3
    plain = LONG.at_once(PREEMPTING.at_once, 1)
    roomy = simulate(PROFILE, 2, plain, policy="kairos", placement="least-kv")
    assert sum(each.preemptions for each in roomy) == 0


@pytest.mark.long
def test_cores_are_told_by_who_used_them():
    burn = "import time\nwhile time.process_time() < 0.3: sum(range(10**5))\nprint(1, flush=True)\n"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", burn + "input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        meter = Meter(children[0].pid)
        before = dict.fromkeys(("engines", "kairos", "client", "others"), 0.0)
        for child in children:
            child.stdout.readline()
        used = meter.read()
        assert used["kairos"] == pytest.approx(0.3, abs=0.15)
        assert used["engines"] >= used["kairos"] - 0.15
        assert used["others"] >= 0
        uptime_s, idle_s = map(float, Path("/proc/uptime").read_text().split())
        busy_s = os.cpu_count() * uptime_s - idle_s
        assert sum(used.values()) <= 1.02 * busy_s + 5  # hosts that steal time are told of twice
        assert cores(before, used, 2.0).kairos == pytest.approx(used["kairos"] / 2, abs=0.001)
    finally:
        for child in children:
            child.communicate()


@pytest.mark.parametrize(("models", "status"), [((12, 13, 8), 0), ((12, 13, 13), 1), ((7,), 1)])
def test_the_verdict_is_on_the_median_error(models, status):
    rows = [row(seed=n, model=model) for n, model in enumerate(models)]
    assert _verdict(rows, Console(quiet=True)) == status


@pytest.mark.long
def test_what_is_shown_has_every_condition_and_survives_what_is_not_known(tmp_path):
    rows = [row(), row(seed=2, model=8.0), row("preempting", model=10.0)]
    console = Console(width=120, record=True, quiet=True)
    with console.capture():
        console.print(show.table(rows))
    found = show.figures(rows)
    assert [each.value for each in found] == [15.0, 0.0]
    assert [each.met for each in found] == [False, True]
    assert "+10.0 %" in show.line(rows[0])
    show.draw(rows, tmp_path / "picture")
    assert (tmp_path / "picture.svg").stat().st_size > 1000
    first = (tmp_path / "picture.svg").read_bytes()
    show.draw([replace(each) for each in rows], tmp_path / "picture")
    assert (tmp_path / "picture.svg").read_bytes() == first
