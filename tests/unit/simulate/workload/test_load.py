"""What a file offers: recorded workflows or a trace, and how they arrive."""

from pathlib import Path

import pytest

from kairos.core import InvalidFile, SetupError
from kairos.simulate import (
    Load,
    draw_arrivals,
    draw_submissions,
    load_workflows,
    offered_workload,
)
from kairos.simulate.workload.arrival_process import time_scale
from kairos.simulate.workload.workflow_file import write_workflows
from tests.support.simulate.worlds import recorded_call


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    write_workflows(tmp_path / "w.jsonl", [recorded_call(f"w{n}") for n in range(4)])
    return tmp_path / "w.jsonl"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four requests, one per second."""
    rows = [f"2023-11-16 18:00:{second:02}.0,{10 + second},5" for second in (0, 1, 1, 3)]
    path = tmp_path / "chat.2023.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


def test_workflows_arrive_as_in_conversations_once_a_second_unless_asked_otherwise(recorded):
    expected = draw_submissions(load_workflows(recorded), draw_arrivals("azure-conv", 4, 1.0, 7), 7)

    assert offered_workload(Load(workflows=recorded)).of(7) == (
        expected,
        time_scale("azure-conv", 1.0),
    )

    asked = Load(workflows=recorded, arrivals="poisson", rate_per_s=3, count=9)
    expected = draw_submissions(load_workflows(recorded), draw_arrivals("poisson", 9, 3, 7), 7)
    assert offered_workload(asked).of(7) == (expected, time_scale("poisson", 3))


@pytest.fixture
def of_yesterday(tmp_path: Path) -> Path:
    """Three workflows that say when they began, not in order of time; the second has two calls."""
    calls = [
        recorded_call(name, index, workflow_start_ms=1_763_000_000_000 + start_ms)
        for name, index, start_ms in (("b", 0, 500), ("a", 0, 0), ("a", 1, 0), ("c", 0, 2500))
    ]
    write_workflows(tmp_path / "day.jsonl", calls)
    return tmp_path / "day.jsonl"


def test_workflows_that_say_when_they_began_come_at_these_instants(of_yesterday):
    asked = offered_workload(Load(workflows=of_yesterday))
    planned, scale = asked.of(1)

    assert asked.has_own_instants
    assert [(each.workflow.id, each.at_us) for each in planned] == [
        ("a", 0),
        ("b", 500_000),
        ("c", 2_500_000),
    ]
    assert scale == 1.0
    assert asked.of(2) == (planned, scale)


def test_a_rate_stretches_them_and_a_count_takes_the_first(of_yesterday):
    planned, scale = offered_workload(Load(workflows=of_yesterday, rate_per_s=0.4, count=2)).of(1)

    assert [each.at_us for each in planned] == [0, 1_000_000]
    assert scale == 2.0
    with pytest.raises(InvalidFile, match="4 workflows wanted, the file has 3"):
        offered_workload(Load(workflows=of_yesterday, count=4))


def test_other_arrivals_may_be_named_for_them(of_yesterday):
    asked = offered_workload(Load(workflows=of_yesterday, arrivals="poisson", count=9))

    assert [each.at_us for each in asked.of(1)[0]] == draw_arrivals("poisson", 9, 1.0, 1)
    assert not asked.has_own_instants


def test_contexts_are_made_to_fit(recorded):
    planned, _ = offered_workload(Load(workflows=recorded, max_context=100)).of(1)

    assert {each.workflow.calls[0].prompt_tokens for each in planned} == {91}


def test_a_trace_has_no_more_arrivals_of_its_own_than_requests(trace):
    assert len(offered_workload(Load(workflows=trace, count=4)).of(1)[0]) == 4
    with pytest.raises(
        InvalidFile, match="5 workflows wanted, the file has 4, each with its instant"
    ):
        offered_workload(Load(workflows=trace, count=5))


def test_a_request_without_tokens_is_refused_with_its_line(trace):
    trace.write_text(trace.read_text().replace(",11,5", ",11,0"))

    with pytest.raises(InvalidFile, match=r"csv:3: a request without tokens"):
        offered_workload(Load(workflows=trace))


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, 1e-7, 2e6, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused_however_workflows_arrive(recorded, trace, rate_per_s):
    for asked in (
        Load(workflows=trace, rate_per_s=rate_per_s),
        Load(workflows=recorded, rate_per_s=rate_per_s),
        Load(workflows=recorded, rate_per_s=rate_per_s, arrivals=str(trace)),
    ):
        with pytest.raises(SetupError, match="the rate must be above 0 arrivals per second"):
            offered_workload(asked).of(1)


def test_arrivals_without_a_name_are_refused(recorded):
    with pytest.raises(SetupError, match="no arrivals are called ''"):
        offered_workload(Load(workflows=recorded, arrivals="")).of(1)
