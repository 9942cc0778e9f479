"""Facts -> figures, on histories small enough to compute by hand."""

from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    SECOND,
    Arrived,
    CallRow,
    CallTracker,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    Record,
    Refuse,
    RunMetrics,
    WorkflowEnded,
)
from kairos.core.metrics import spread
from tests.support.simulate import build

NOTHING = {"mean": None, "p50": None, "p90": None, "p95": None, "p99": None}


def same(value: float) -> dict[str, float]:
    return dict.fromkeys(NOTHING, value)


def arrived(name, at_s, *, on=None, **fields) -> Record:
    request = build.request(name, at=at_s * SECOND, **fields)
    return at(at_s, Arrived(request), *([Dispatch(name, on)] if on else []))


def at(at_s, event, *commands) -> Record:
    return Record(int(at_s * SECOND), event, commands)


def measured(*records: Record) -> dict:
    metrics = RunMetrics()
    for record in records:
        metrics(record)
    return metrics.record()


def ended(*records: Record) -> list[CallRow]:
    tracker = CallTracker()
    return [row for record in records for row in tracker.observe(record)]


# Two workflows on one instance: "one" is qa's two calls in sequence, "two" is rg's one call.
# "one" began 1 s before its first call arrived, and told its end 1 s after its last call.
HISTORY = [
    arrived("a", 10, on="i", workflow_id="one", app="qa", workflow_started_at=9 * SECOND),
    arrived("c", 11, workflow_id="two", app="rg"),
    at(11.5, FirstToken("a")),
    at(12, Finished("a", 100, 20, 30), Dispatch("c", "i")),
    at(12.25, FirstToken("c")),
    arrived("b", 13, workflow_id="one", app="qa", workflow_started_at=9 * SECOND),
    at(15, Finished("c", 50, 10), Dispatch("b", "i")),
    at(16, FirstToken("b")),
    at(18, Finished("b", 200, 20, 120)),
    at(19, WorkflowEnded("default", "one")),
]
ONE = {
    "workflows": 1,
    "calls": 2,
    "e2e_s": same(10.0),  # 9 s to 19 s
    "s_per_token": same(0.25),  # over 20 + 20 tokens
    "ttft_s": {"mean": 2.25, "p50": 2.25, "p90": 2.85, "p95": 2.925, "p99": 2.985},
    "queued_share": 0.2,  # 0 s + 2 s of 10 s
    "preemptions_per_call": None,
    "recomputed_token_share": None,
    "cached_prompt_share": 0.5,  # 30 + 120 of 100 + 200
    "wasted_tokens": None,
}
TWO = {
    "workflows": 1,
    "calls": 1,
    "e2e_s": same(4.0),  # 11 s to 15 s, when its only call ended
    "s_per_token": same(0.4),
    "ttft_s": same(1.25),
    "queued_share": 0.25,
    "preemptions_per_call": None,
    "recomputed_token_share": None,
    "cached_prompt_share": None,  # its engine tells nothing of its cache
    "wasted_tokens": None,
}


def approx(record: dict) -> dict:
    return {
        key: approx(value)
        if isinstance(value, dict)
        else pytest.approx(value)
        if isinstance(value, float)
        else value
        for key, value in record.items()
    }


def test_a_run_is_summed_up_whole_and_per_app():
    assert measured(*HISTORY) == approx(
        {
            "workflows": 2,
            "calls": 3,
            "e2e_s": {"mean": 7.0, "p50": 7.0, "p90": 9.4, "p95": 9.7, "p99": 9.94},
            "s_per_token": {
                "mean": 0.325,
                "p50": 0.325,
                "p90": 0.385,
                "p95": 0.3925,
                "p99": 0.3985,
            },
            "ttft_s": {"mean": 5.75 / 3, "p50": 1.5, "p90": 2.7, "p95": 2.85, "p99": 2.97},
            "queued_share": 3 / 14,
            "preemptions_per_call": None,
            "recomputed_token_share": None,
            "cached_prompt_share": 0.5,  # of the calls that told
            "wasted_tokens": None,
            "apps": {"qa": ONE, "rg": TWO},
        }
    )


# One engine tells all: "a" was preempted twice and computed 30 tokens again; "b" failed after 7.
TOLD = [
    arrived("a", 0, on="i", workflow_id="one", app="qa"),
    arrived("b", 0, on="i", workflow_id="two", app="rg"),
    arrived("c", 0, on="i", workflow_id="three", app="rg"),
    at(2, Finished("a", 100, 20, 40, 2, 30)),
    at(2, WorkflowEnded("default", "one")),
    at(3, Failed("b", "engine", wasted_tokens=7)),
    at(3, WorkflowEnded("default", "two")),
    at(4, Finished("c", 60, 30, 0, 0, 0)),
]


def test_preemptions_and_work_in_vain_are_counted_where_engines_told():
    record = measured(*TOLD)

    assert record["preemptions_per_call"] == 1.0  # 2 of a, 0 of c; b told nothing
    # a: 60 of its prompt, 20 of the answer, 30 once more; c: 60 + 30.
    assert record["recomputed_token_share"] == 30 / (60 + 20 + 30 + 60 + 30)
    assert record["wasted_tokens"] == 37
    assert record["apps"]["rg"]["preemptions_per_call"] == 0.0
    assert record["apps"]["rg"]["recomputed_token_share"] == 0.0
    assert record["apps"]["rg"]["wasted_tokens"] == 7


def test_what_a_failed_call_generated_is_no_token_of_its_workflow():
    assert measured(*TOLD[1:2], *TOLD[5:7])["s_per_token"] == NOTHING


def test_slowdown_is_told_against_running_alone():
    metrics = RunMetrics()
    for record in TOLD:
        metrics(record)
    alone_us = {("default", "one"): 1 * SECOND, ("default", "three"): 2 * SECOND}

    record = metrics.record(alone_us)

    assert record["slowdown"] == {**same(2.0), "worst": 2.0}
    assert record["apps"]["rg"]["slowdown"]["worst"] == 2.0  # "two" is not known alone
    alone_us["default", "three"] = SECOND
    assert metrics.record(alone_us)["slowdown"]["worst"] == 4.0
    assert metrics.record(alone_us)["slowdown"]["mean"] == 3.0
    assert metrics.record({})["slowdown"] == {**NOTHING, "worst": None}


def test_workflows_that_failed_have_no_times_of_their_own_but_their_calls_count():
    metrics = RunMetrics()
    for record in TOLD:
        metrics(record)

    record = metrics.record({("default", "two"): SECOND}, failed={("default", "two")})

    assert (record["workflows"], record["calls"]) == (2, 3)
    assert record["e2e_s"] == approx({"mean": 3.0, "p50": 3.0, "p90": 3.8, "p95": 3.9, "p99": 3.98})
    assert record["wasted_tokens"] == 37
    assert record["slowdown"]["worst"] is None
    assert record["apps"]["rg"]["e2e_s"] == same(4.0)


def test_what_the_calls_of_failed_workflows_waited_is_no_share_of_the_others_time():
    metrics = RunMetrics()
    for record in HISTORY:
        metrics(record)

    assert metrics.record(failed={("default", "two")})["queued_share"] == 0.2
    assert metrics.record(failed={("default", "one")})["queued_share"] == 0.25


def test_of_a_run_that_was_broken_off_only_what_ended_is_kept():
    metrics = RunMetrics()
    for record in TOLD:
        metrics(record)
    metrics.drop_open()

    assert {row.request.id for row in metrics.rows} == {"a", "b"}  # the end of "three" is not told


def test_a_run_without_calls_has_no_figures():
    assert measured(at(0, InstanceJoined(build.instance("i")))) == {
        "workflows": 0,
        "calls": 0,
        "e2e_s": NOTHING,
        "s_per_token": NOTHING,
        "ttft_s": NOTHING,
        "queued_share": None,
        "preemptions_per_call": None,
        "recomputed_token_share": None,
        "cached_prompt_share": None,
        "wasted_tokens": None,
        "apps": {},
    }


def test_calls_that_say_nothing_of_their_app_are_of_an_unknown_one():
    record = measured(arrived("a", 0, on="i"), at(1, Finished("a")))

    assert list(record["apps"]) == ["unknown"]


def test_calls_still_in_flight_are_not_counted():
    assert measured(arrived("a", 0, on="i"), at(1, FirstToken("a")))["calls"] == 0


def test_workflows_of_one_name_are_two_if_their_tenants_are():
    def tenants_call(tenant):
        return [
            arrived(tenant, 0, on="i", tenant=tenant, workflow_id="w"),
            at(2, Finished(tenant, 1, 1)),
        ]

    record = measured(
        *tenants_call("acme"), *tenants_call("umbrella"), at(4, WorkflowEnded("acme", "w"))
    )

    assert record["workflows"] == 2
    assert (record["e2e_s"]["mean"], record["e2e_s"]["p50"]) == (3.0, 3.0)


def test_a_workflow_that_generated_nothing_has_no_seconds_per_token():
    record = measured(arrived("a", 0, on="i"), at(2, Failed("a", "engine")))

    assert (record["e2e_s"], record["s_per_token"], record["ttft_s"]) == (
        same(2.0),
        NOTHING,
        NOTHING,
    )


def test_a_workflow_whose_end_is_not_told_ends_with_its_last_call():
    record = measured(
        arrived("a", 1, on="i", workflow_id="w", workflow_started_at=0),
        arrived("b", 2, on="i", workflow_id="w", workflow_started_at=0),
        at(3, Finished("b", 1, 1)),
        at(8, Finished("a", 1, 1)),
    )

    assert record["e2e_s"] == same(8.0)


def test_a_workflow_goes_from_its_earliest_start_to_its_latest_end_in_whatever_order_they_come():
    """Calls that say nothing of the start begin one themselves; hosts' clocks may disagree."""
    record = measured(
        arrived("a", 1, on="i", workflow_id="w", workflow_started_at=0),
        arrived("b", 2, on="i", workflow_id="w", workflow_started_at=2 * SECOND),
        at(9, Finished("a", 1, 1)),
        at(8, Finished("b", 1, 1)),
    )

    assert record["e2e_s"] == same(9.0)


def test_where_every_call_was_refused_the_whole_time_was_waiting():
    record = measured(arrived("a", 1), at(5, InstanceJoined(build.instance("i")), Refuse("a", "m")))

    assert record["queued_share"] == 1.0


def test_the_end_of_a_workflow_counts_as_it_was_told_first():
    call = [arrived("a", 0, on="i", workflow_id="w"), at(1, Finished("a", 1, 1))]
    told_twice = [at(3, WorkflowEnded("default", "w")), at(9, WorkflowEnded("default", "w"))]

    assert measured(*call, *told_twice)["e2e_s"] == same(3.0)


def test_a_call_is_followed_from_its_arrival_to_its_end():
    request = build.request("a", at=1 * SECOND)
    records = [
        at(1, Arrived(request)),
        at(2, FirstToken("other"), Dispatch("a", "i")),
        at(3, FirstToken("a")),
        at(4, Finished("a", 5, 6, 7)),
    ]

    [row] = ended(*records)

    assert row == CallRow(
        request,
        dispatch=Dispatch("a", "i"),
        dispatched_at=2 * SECOND,
        first_token_at=3 * SECOND,
        ended_at=4 * SECOND,
        outcome="finished",
        prompt_tokens=5,
        completion_tokens=6,
        cached_tokens=7,
    )
    assert row.queued_us == 1 * SECOND


@pytest.mark.parametrize(
    ("end", "outcome", "why"),
    [
        (at(3, Finished("a")), "finished", None),
        (at(3, Failed("a", "x")), "failed", "x"),
        (at(3, Cancelled("a")), "cancelled", None),
        (at(3, InstanceJoined(build.instance("i")), Refuse("a", "m")), "refused", "no_instance"),
    ],
)
def test_a_call_that_was_never_dispatched_waited_until_its_end(end, outcome, why):
    request = build.request("a", at=1 * SECOND)

    [row] = ended(at(1, Arrived(request)), end)

    assert row == CallRow(request, ended_at=3 * SECOND, outcome=outcome, why=why)
    assert row.queued_us == 2 * SECOND


def test_a_call_in_flight_has_waited_for_nothing_that_is_known():
    assert CallRow(build.request("a", at=5)).queued_us == 0


def test_a_call_dispatched_at_the_start_of_time_did_not_wait():
    assert CallRow(build.request("a"), dispatched_at=0, ended_at=9).queued_us == 0


def test_repeated_and_late_facts_change_nothing():
    request = build.request("a")
    once = [
        at(0, Arrived(request), Dispatch("a", "i")),
        at(1, FirstToken("a")),
        at(2, Finished("a", 1, 2, 0)),
    ]
    with_echoes = [
        once[0],
        at(0.5, Arrived(build.request("a", at=SECOND // 2))),
        once[1],
        at(1.5, FirstToken("a")),
        once[2],
        at(3, Finished("a", 8, 9, 7)),
        at(3, Cancelled("a")),
        at(3, FirstToken("a"), Dispatch("a", "j"), Refuse("a", None)),
    ]

    assert ended(*with_echoes) == ended(*once)
    assert len(ended(*once)) == 1


def test_one_record_can_end_several_calls():
    arrivals = [at(0, Arrived(build.request(name))) for name in "abc"]
    gone = at(1, InstanceJoined(build.instance("i")), Refuse("c", None), Refuse("a", None))

    assert [(row.request.id, row.outcome) for row in ended(*arrivals, gone)] == [
        ("c", "refused"),
        ("a", "refused"),
    ]


def test_percentiles_are_interpolated_between_the_neighbours():
    values = [15.0, 20.0, 35.0, 40.0, 50.0]

    assert spread(reversed(values)) == approx(
        {"mean": 32.0, "p50": 35.0, "p90": 46.0, "p95": 48.0, "p99": 49.6}
    )


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values):
    cuts = quantiles(values, n=100, method="inclusive")

    assert spread(values) == approx(
        {
            "mean": fmean(values),
            "p50": cuts[49],
            "p90": cuts[89],
            "p95": cuts[94],
            "p99": cuts[98],
        }
    )


def test_the_spread_of_one_value_is_that_value():
    assert spread([3.5]) == same(3.5)
