"""The live comparison of two policies: what it looks for, keeps and claims. No demo runs here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments import versus
from experiments.versus import Results, figures, queued_share, rate_of_half
from kairos.demo.options import Options
from kairos.demo.plan import plan_arrivals
from kairos.model import SECOND

KEYS = ("mean", "p50", "p90", "p95", "p99")


def part(value):
    return {metric: dict.fromkeys(KEYS, value) for metric in versus.METRICS} | {"queued_share": 0.5}


def pair(seed, ours, theirs):
    def whole(value):
        return part(value) | {"apps": {"qa": part(value / 2), "rg": part(value * 2)}}

    return versus.Pair(
        commit="abc",
        seed=seed,
        workflows=9,
        rate_per_s=0.7,
        runs={"kairos": whole(ours), "fcfs": whole(theirs)},
        ratio=whole(ours / theirs) | {"apps": dict.fromkeys(("qa", "rg"), part(ours / theirs))},
    )


@pytest.fixture
def demos(monkeypatch):
    """Seeds of the demos that would have run."""
    ran = []

    def run_demo(seed, workflows, rate):
        ran.append(seed)
        found = pair(seed, 1.0 * seed, 2.0)
        return {"runs": found.runs, "ratio": found.ratio}

    monkeypatch.setattr(versus, "run_demo", run_demo)
    return ran


def test_who_waits_behind_whom_at_one_server():
    spacing_s = 1 / versus.SERVED_PER_S
    apart = [int(place * spacing_s * SECOND) + place for place in range(9)]
    assert queued_share(apart) == 0

    at_once = queued_share([0, 0, 0])  # they wait for none, one and two others
    assert at_once == pytest.approx(3 * spacing_s / (3 * spacing_s + 3 * versus.UNQUEUED_S))


@given(
    st.lists(st.integers(0, 100 * SECOND), min_size=2).map(sorted),
    st.floats(0.1, 1, exclude_max=True),
)
def test_the_closer_they_come_the_more_is_queued(at_us, factor):
    assert queued_share([int(at * factor) for at in at_us]) >= queued_share(at_us) - 1e-6


@pytest.mark.long
def test_every_seed_has_a_rate_of_its_own_at_which_half_is_queued():
    rates = {seed: rate_of_half(seed, 60) for seed in (1, 2, 3)}

    assert len({*rates.values()}) == 3
    for seed, rate in rates.items():
        arrivals = plan_arrivals(Options(seed=seed, workflows=60, rate_per_s=rate))
        assert queued_share(arrivals.at_us) == pytest.approx(0.5, abs=0.01)


@pytest.mark.long
def test_what_is_known_at_this_commit_is_not_run_again(tmp_path, demos):
    path = tmp_path / "versus.jsonl"
    first = Results(path, "abc", 9).measured(1)

    again = Results(path, "abc+", 9)  # the results themselves have changed the tree

    assert again.measured(1) == first
    assert again.measured(2).runs["kairos"]["e2e_s"]["mean"] == 2.0
    assert demos == [1, 2]
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.long
@pytest.mark.parametrize(("commit", "workflows"), [("abd", 9), ("abc", 8)])
def test_other_code_or_fewer_workflows_are_measured_anew(tmp_path, demos, commit, workflows):
    path = tmp_path / "versus.jsonl"
    Results(path, "abc", 9).measured(1)

    Results(path, commit, workflows).measured(1)

    assert demos == [1, 1]
    assert len(path.read_bytes().splitlines()) == 1  # no two codes in one file


def test_one_seed_that_is_slower_breaks_the_claim():
    good = [pair(1, 1.0, 2.0), pair(2, 3.0, 4.0)]
    claim, e2e, *_ = figures(good)
    assert (claim.value, claim.met) == (0.75, True)
    assert e2e.value == 0.625
    assert e2e.detail == {"qa": 0.625, "rg": 0.625, "all": 0.625}

    claim, *_ = figures([*good, pair(3, 4.1, 4.0)])
    assert (claim.value, claim.met) == (1.025, False)


def test_the_tables_show_each_seed_and_each_application():
    console = Console(width=120)
    with console.capture() as captured:
        pairs = [pair(1, 1.0, 2.0), pair(2, 3.0, 4.0)]
        console.print(versus.seeds_table(pairs), versus.apps_table(pairs))

    shown = [line for line in captured.get().splitlines() if "\u2502" in line]
    rows = [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in shown]
    assert rows[:2] == [
        ["1", "0.700", "50%", "2.0", "1.0", "0.500"],
        ["2", "0.700", "50%", "4.0", "3.0", "0.750"],
    ]
    assert rows[2:] == [
        ["qa", *["1.5  1  0.62"] * 4],
        ["rg", *["6  4  0.62"] * 4],
        ["all", *["3  2  0.62"] * 4],
    ]


@pytest.mark.long
def test_the_picture_is_drawn_twice_the_same(tmp_path):
    pairs = [pair(1, 1.0, 2.0), pair(2, 3.0, 4.0)]
    versus.draw(pairs, tmp_path / "one")
    versus.draw(pairs, tmp_path / "two")
    assert (tmp_path / "one.svg").stat().st_size > 5_000
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
