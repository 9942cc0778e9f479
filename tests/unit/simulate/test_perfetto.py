"""A trace of workflows, as the format that Perfetto reads has it."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Arrived, CallRow, Dispatch, Finished, Record, SetupError
from kairos.observe import FactLog, Snapshot, workflow_view
from kairos.simulate import write_trace, write_trace_of_log
from kairos.simulate.perfetto import trace_events
from tests.support.simulate import build

NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def row(name, arrived, gone, first, ended, *, instance="i", **said):
    made = build.request(name, at=arrived, workflow_id="w", workflow_started_at=0, **said)
    at = None if gone is None else Dispatch(name, instance)
    outcome = None if ended is None else "finished"
    return CallRow(made, at, gone, first, ended, outcome)


def view(*rows, ended_at=None, name="w"):
    at = max([0, *(row.ended_at or row.request.arrived_at for row in rows)])
    seen = Snapshot(
        key=("default", name), rows=[*rows], left_out=0, at=at, ended_at=ended_at, idle=False
    )
    return workflow_view(seen, 0, 10_000)


def checked(events):
    """The events, having looked that they are as the format wants them: every field is there,
    slices of a thread nest, threads have names, and arrows begin and end within slices."""
    events = list(events)
    for event in events:
        assert event.keys() - {"ph"} == NEEDED[event["ph"]]
    on = {}
    for event in events:
        if event["ph"] == "X":
            on.setdefault((event["pid"], event["tid"]), []).append(event)
    named = {(each["name"], each["pid"], each["tid"]) for each in events if each["ph"] == "M"}
    for (pid, tid), own in on.items():
        assert named >= {("thread_name", pid, tid), ("process_name", pid, 0)}
        check_nesting(own)
    check_arrows([each for each in events if each["ph"] in "sf"], on)
    return events


def check_nesting(own):
    around = []
    for each in sorted(own, key=lambda e: (e["ts"], -e["dur"])):
        assert each["dur"] >= 0
        ends = each["ts"] + each["dur"]
        while around and around[-1] <= each["ts"]:
            around.pop()
        assert not around or ends <= around[-1]
        around.append(ends)


def check_arrows(arrows, on):
    by_id = {}
    for each in arrows:
        by_id.setdefault(each["id"], []).append(each["ph"])
        around = on[each["pid"], each["tid"]]
        assert any(e["ts"] <= each["ts"] <= e["ts"] + e["dur"] for e in around)
    assert all(phases == ["s", "f"] for phases in by_id.values())


def slices(events, category):
    return [
        (each["name"], each["ts"], each["dur"])
        for each in events
        if each["ph"] == "X" and each["cat"] == category
    ]


def test_a_call_waits_and_runs_and_what_led_to_it_has_an_arrow():
    events = checked(
        trace_events(
            [
                view(
                    row("a", 0, 10, 20, 50, agent="plan"),
                    row("b", 60, 70, None, 90, agent="write", parent_ids=("a",)),
                    ended_at=100,
                )
            ],
            100,
        )
    )
    assert slices(events, "wait") == [("plan", 0, 10), ("write", 60, 10)]
    assert slices(events, "call") == [
        ("plan", 10, 40),
        ("prompt", 10, 10),
        ("answer", 20, 30),
        ("write", 70, 20),
    ]
    assert slices(events, "workflow") == [("w", 0, 100)]
    [said] = [e["args"] for e in events if e["ph"] == "X" and e["name"] == "write" and "cat" in e][
        1:
    ]
    assert (said["call"], said["outcome"]) == ("b", "finished")
    assert "its turn: first by policy" in said["why"]
    assert [(e["ph"], e["ts"]) for e in events if e["ph"] in "sf"] == [("s", 49), ("f", 70)]
    counts = [(e["ts"], e["args"]["calls"]) for e in events if e["ph"] == "C"]
    assert counts == [(0, 1), (10, 0), (60, 1), (70, 0)]


def test_calls_at_once_lie_on_threads_of_their_own_and_each_instance_is_a_process():
    rows = [row(str(n), 0, n, None, 100 + n) for n in range(3)]
    rows += [row("later", 0, 101, None, 120), row("there", 0, 5, None, 9, instance="j")]
    events = checked(trace_events([view(*rows)], 200))
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"Queue", "Workflows", "Instance i", "Instance j"}
    [pid] = [
        e["pid"]
        for e in events
        if e["name"] == "process_name" and e["args"]["name"] == "Instance i"
    ]
    threads = [e["tid"] for e in events if e["ph"] == "X" and e["pid"] == pid]
    assert threads == [1, 2, 3, 1]


def test_what_has_not_ended_goes_on_to_the_end():
    events = checked(
        trace_events([view(row("a", 10, 20, None, None), row("b", 30, None, None, None))], 99)
    )
    assert slices(events, "wait") == [
        ("a call without a name", 10, 10),
        ("a call without a name", 30, 69),
    ]
    assert slices(events, "call") == [("a call without a name", 20, 79)]
    assert slices(events, "workflow") == [("w", 0, 99)]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 30), min_size=4, max_size=4).map(sorted),
            st.sampled_from("ij"),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_however_calls_lie_slices_nest_and_arrows_hold(calls):
    rows = [
        row(
            str(n), at[0], at[1], at[2] if is_streamed else None, at[3],
            instance=instance, parent_ids=(str(n - 1),) if n % 2 else (),
        )
        for n, (at, instance, is_streamed) in enumerate(calls)
    ]  # fmt: skip
    events = checked(trace_events([view(*rows)] if rows else [], 40))
    counts = [e["args"]["calls"] for e in events if e["ph"] == "C"]
    assert min(counts, default=0) >= 0
    assert counts[-1:] in ([], [0])
    instants = [e["ts"] for e in events if e["ph"] == "C"]
    assert all(one < other for one, other in pairwise(instants))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_file_is_of_the_workflows_of_a_log_that_began_since(tmp_path, name):
    log = FactLog(tmp_path / "log")
    for n, workflow in enumerate(["early", "late"]):
        made = build.request(
            f"r{n}", at=n * SECOND, workflow_id=workflow, workflow_started_at=n * SECOND
        )
        log(Record(n * SECOND, Arrived(made), (Dispatch(f"r{n}", "i"),)))
        log(Record(n * SECOND + 10, Finished(f"r{n}", 10, 5)))
    log.close()
    assert write_trace_of_log(tmp_path / name, tmp_path / "log", SECOND) == 1
    content = (tmp_path / name).read_bytes()
    trace = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert [name for name, *_ in slices(checked(trace["traceEvents"]), "workflow")] == ["late"]
    assert write_trace_of_log(tmp_path / name, tmp_path / "log", None) == 2
    with pytest.raises(SetupError, match="began since then"):
        write_trace_of_log(tmp_path / name, tmp_path / "log", 9 * SECOND)
    with pytest.raises(SetupError, match="cannot write"):
        write_trace(tmp_path / "no" / name, [view(row("a", 0, 1, 2, 3))])
