"""The live comparison of two policies: what it looks for, keeps and claims. No demo runs here."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import versus
from experiments.versus import Pair, Probe, Results, figures, rate_of_half

KEYS = ("mean", "p50", "p90", "p95", "p99")


def part(value):
    return {metric: dict.fromkeys(KEYS, value) for metric in versus.METRICS} | {"queued_share": 0.5}


def pair(seed, ours, theirs, *, commit="abc", rate=0.7):
    def whole(value):
        return part(value) | {"apps": {"qa": part(value / 2), "rg": part(value * 2)}}

    return Pair(
        commit=commit,
        seed=seed,
        workflows=9,
        rate_per_s=rate,
        runs={"kairos": whole(ours), "fcfs": whole(theirs)},
        ratio=whole(ours / theirs) | {"apps": dict.fromkeys(("qa", "rg"), part(ours / theirs))},
    )


@pytest.fixture
def demos(monkeypatch):
    """The demos that would have run: seed, rate, policies. They queue as much as the rate says."""
    ran = []

    def run_demo(seed, workflows, rate, *policies):
        ran.append((seed, rate, policies))
        if "--versus" not in policies:
            return {"queued_share": rate - 0.25}
        found = pair(seed, 1.0, 2.0)
        return {"runs": found.runs, "ratio": found.ratio}

    monkeypatch.setattr(versus, "run_demo", run_demo)
    return ran


@given(st.floats(0.51, 1.95), st.floats(0.5, 20))
def test_the_rate_is_found_wherever_in_the_range_half_of_the_time_is_queued(where, steepness):
    def share_at(rate):
        return 1 / (1 + math.exp(-steepness * (rate - where)))

    assert abs(share_at(rate_of_half(share_at)) - 0.5) <= versus.TOLERANCE


def test_without_such_a_rate_the_search_ends():
    with pytest.raises(SystemExit, match="no rate between"):
        rate_of_half(lambda rate: 0.0)


def test_what_is_known_at_this_commit_is_not_run_again(tmp_path, demos):
    path = tmp_path / "versus.jsonl"
    Results(path, "abc", 9).measure(1, 0.7)
    Results(path, "abc", 9).queued_share(1, 0.7)
    assert len(demos) == 2

    again = Results(path, "abc+", 9)  # the results themselves have changed the tree
    again.measure(1, 0.7)
    again.measure(2, 0.7)

    assert again.queued_share(1, 0.7) == pytest.approx(0.45)
    assert demos[2:] == [(2, 0.7, ("--policy", "kairos", "--versus", "fcfs"))]
    assert [each.seed for each in Results(path, "abc", 9).pairs(0.7)] == [1, 2]


@pytest.mark.parametrize(("commit", "workflows", "rate"), [("abd", 9, 0.7), ("abc", 8, 0.7)])
def test_other_code_or_fewer_workflows_are_measured_anew(tmp_path, demos, commit, workflows, rate):
    path = tmp_path / "versus.jsonl"
    Results(path, "abc", 9).measure(1, 0.7)

    Results(path, commit, workflows).measure(1, rate)

    assert len(demos) == 2
    assert Results(path, "abc", 9).pairs(0.7) == []  # no two codes in one file


def test_another_rate_is_another_measurement(tmp_path, demos):
    results = Results(tmp_path / "versus.jsonl", "abc", 9)
    results.measure(1, 0.7)
    results.measure(1, 0.8)
    assert [len(results.pairs(rate)) for rate in (0.7, 0.8, 0.9)] == [1, 1, 0]


def test_a_row_is_read_as_it_was_written(tmp_path):
    rows = [pair(1, 1.0, 2.0), Probe(commit="a", seed=1, workflows=9, rate_per_s=1, queued_share=0)]
    for row in rows:
        assert msgspec.json.decode(msgspec.json.encode(row), type=Probe | Pair) == row


def test_one_seed_that_is_slower_breaks_the_claim():
    good = [pair(1, 1.0, 2.0), pair(2, 3.0, 4.0)]
    claim, e2e, *_ = figures(good)
    assert (claim.value, claim.met) == (0.75, True)
    assert e2e.value == 0.625
    assert e2e.detail == {"qa": 0.625, "rg": 0.625, "all": 0.625}

    claim, *_ = figures([*good, pair(3, 4.1, 4.0)])
    assert (claim.value, claim.met) == (1.025, False)


def test_the_picture_is_drawn_twice_the_same(tmp_path):
    pairs = [pair(1, 1.0, 2.0), pair(2, 3.0, 4.0)]
    versus.draw(pairs, tmp_path / "one")
    versus.draw(pairs, tmp_path / "two")
    assert (tmp_path / "one.png").stat().st_size > 5_000
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
