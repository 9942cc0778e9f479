"""From facts to a workflow file: which workflows go into it, and in which order their calls."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    SECOND,
    Arrived,
    CallRow,
    Dispatch,
    Failed,
    Finished,
    InstanceJoined,
    InvalidFile,
    ProfilesLearnt,
    Record,
    SetupError,
    WorkflowEnded,
)
from kairos.observe import FactLog
from kairos.simulate import export_workflows, load_workflows, parse_since
from kairos.simulate.export import Exported, workflow_calls
from kairos.simulate.workload.workflow_file import read_workflows, write_workflows
from tests.support.simulate import build

MS = build.MS
NOW = 1_750_000_000 * SECOND


def row(name, begins, ends, *, agent=None, waited=0, lengths=(10, 5), outcome="finished", **said):
    """A call that ran from `begins` to `ends`, in ms; it arrived `waited` before."""
    said = {"workflow_id": "w", "workflow_started_at": 0, "app": "demo"} | said
    made = build.request(name, at=(begins - waited) * MS, agent=agent or name, **said)
    return CallRow(
        made,
        dispatch=Dispatch(name, "i"),
        dispatched_at=begins * MS,
        ended_at=ends * MS,
        outcome=outcome,
        prompt_tokens=lengths and lengths[0],
        completion_tokens=lengths and lengths[1],
    )


def exported(*rows):
    """Agent, group and gap of each call, in the order of the file."""
    return [(c.agent, c.parallel_group, c.gap_ms) for c in workflow_calls(rows)]


def test_a_call_is_written_with_its_lengths_and_instants():
    (call,) = workflow_calls(
        [
            row(
                "a",
                5030,
                5050,
                agent="router",
                waited=10,
                upstream="user",
                lengths=(7, 3),
                workflow_started_at=5000 * MS,
            )
        ]
    )

    assert (call.workflow_id, call.app, call.agent, call.upstream) == (
        "w",
        "demo",
        "router",
        "user",
    )
    assert (call.prompt_tokens, call.completion_tokens, call.call_index) == (7, 3, 0)
    assert (call.gap_ms, call.start_ms, call.end_ms, call.parallel_group) == (20, 20, 50, None)
    assert call.workflow_start_ms == 5000


def test_calls_in_sequence_have_the_time_between_them_as_gaps_without_the_queue():
    rows = [
        row("a", 0, 10),
        row("b", 30, 40, upstream="a", waited=15),
        row("c", 40, 60, upstream="b"),
    ]

    assert exported(*reversed(rows)) == [("a", None, 0), ("b", None, 5), ("c", None, 0)]


def test_calls_that_ran_at_once_are_one_parallel_group_and_what_follows_waits_for_all():
    rows = [
        row("a", 0, 10),
        row("b", 12, 30, parent_ids=("a",)),
        row("c", 14, 40, parent_ids=("a",)),
        row("d", 45, 50, parent_ids=("b", "c")),
    ]

    assert exported(*rows) == [
        ("a", None, 0),
        ("b", "level-1", 2),
        ("c", "level-1", 4),
        ("d", None, 5),
    ]


def test_branches_side_by_side_go_level_by_level_and_never_before_what_led_to_them():
    rows = [
        row("a", 0, 10),
        row("b", 10, 20, parent_ids=("a",)),
        row("c", 10, 90, parent_ids=("a",)),
        row("f", 25, 30, parent_ids=("b",)),  # ends before c does
        row("g", 95, 99, parent_ids=("c",)),
    ]

    assert exported(*rows) == [
        ("a", None, 0),
        ("b", "level-1", 0),
        ("c", "level-1", 0),
        ("f", "level-2", 5),
        ("g", "level-2", 5),
    ]


def test_calls_that_one_agent_made_one_after_the_other_are_no_group():
    rows = [
        row("a", 0, 10),
        row("b", 10, 20, parent_ids=("a",)),
        row("f", 20, 30, parent_ids=("b",)),
        row("c", 35, 40, parent_ids=("a",)),
    ]

    assert exported(*rows) == [("a", None, 0), ("b", None, 0), ("f", None, 0), ("c", None, 5)]


def test_a_call_without_an_answer_or_without_lengths_is_left_out_and_its_followers_stay():
    rows = [
        row("a", 0, 10),
        row("b", 10, 20, upstream="a", lengths=None),
        row("x", 20, 25, upstream="b", outcome="failed", lengths=None),
        row("c", 25, 40, upstream="b"),
    ]

    assert exported(*rows) == [("a", None, 0), ("c", None, 5)]


def test_a_call_that_was_tried_again_is_written_once():
    rows = [row("a", 0, 10, lengths=(1, 1)), row("a", 20, 30, attempt=2, lengths=(2, 2))]

    assert [call.prompt_tokens for call in workflow_calls(rows)] == [2]


def test_workflows_of_several_tenants_stay_apart():
    rows = [row("a", 0, 10), row("b", 0, 10, tenant="acme"), row("c", 9, 12, workflow_id="v")]

    assert [call.workflow_id for call in workflow_calls(rows[:1])] == ["w"]
    assert [call.workflow_id for call in workflow_calls(rows)] == [
        "default/w",
        "acme/w",
        "default/v",
    ]


def test_a_join_waits_for_its_parents_though_another_branch_goes_on():
    rows = [
        row("a", 0, 10),
        row("b", 10, 20, parent_ids=("a",)),
        row("c", 10, 30, parent_ids=("a",)),
        row("e", 10, 90, parent_ids=("a",)),
        row("d", 35, 50, parent_ids=("b", "c")),
    ]

    assert exported(*rows) == [
        ("a", None, 0),
        ("b", "level-1", 0),
        ("c", "level-1", 0),
        ("e", "level-1", 0),
        ("d", None, 5),
    ]


def test_what_comes_after_a_join_waits_for_it_though_another_branch_ended_last():
    rows = [
        row("a", 0, 10),
        row("b", 10, 20, parent_ids=("a",)),
        row("c", 10, 30, parent_ids=("a",)),
        row("e", 10, 90, parent_ids=("a",)),
        row("d", 35, 50, parent_ids=("b", "c")),
        row("f", 95, 99, parent_ids=("a",)),
    ]

    assert exported(*rows)[-2:] == [("d", None, 5), ("f", None, 5)]


def test_a_workflow_of_thousands_of_calls_in_a_row_is_written_whole():
    rows = [row(str(n), n, n + 1, parent_ids=(str(n - 1),) * (n > 0)) for n in range(3000)]

    assert [call.agent for call in workflow_calls(rows)] == [str(n) for n in range(3000)]


@st.composite
def histories(draw):
    """Calls that begin after those that led to them ended: none, one, or several as a join. Each
    takes some time: of calls of no time at all, at one instant, nothing tells which came first."""
    ends, rows = [0], []
    for n in range(draw(st.integers(0, 12))):
        parents = draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set()
        begins = max([0, *(ends[parent] for parent in parents)]) + draw(st.integers(0, 20))
        ends[n:] = [begins + draw(st.integers(1, 30))]
        waited = draw(st.integers(0, min(begins, 2)))
        ids = tuple(str(parent) for parent in sorted(parents))
        rows.append(row(str(n), begins, ends[n], waited=waited, parent_ids=ids))
    return rows


@given(histories())
def test_whatever_the_workflow_no_call_goes_before_what_led_to_it(rows):
    written = list(workflow_calls(rows))

    order = {call.agent: n for n, call in enumerate(written)}
    group = {call.agent: call.parallel_group for call in written}
    assert sorted(order) == sorted(made.request.id for made in rows)
    assert [call.call_index for call in written] == list(range(len(rows)))
    for made in rows:
        for parent in made.request.parent_ids:
            child = made.request.id
            assert order[parent] < order[child]
            assert group[parent] is None or group[parent] != group[child]


@given(rows=histories())
def test_what_is_written_can_be_driven_and_each_call_waits_for_what_led_to_it(
    tmp_path_factory, rows
):
    path = tmp_path_factory.mktemp("w") / "w.jsonl"
    write_workflows(path, workflow_calls(rows))
    if not rows:
        return
    (driven,) = load_workflows(path)

    order = {call.agent: n for n, call in enumerate(driven.calls)}
    waits: list[set[int]] = []
    for direct in driven.waits_for:
        waits.append(set(direct).union(*(waits[each] for each in direct)))
    for made in rows:
        parents = {order[parent] for parent in made.request.parent_ids}
        assert parents <= waits[order[made.request.id]]


def test_an_upstream_is_written_where_a_call_of_it_goes_before_or_it_is_from_outside():
    rows = [
        row("a", 0, 10, upstream="user"),
        row("b", 10, 20, upstream="a", lengths=None),
        row("c", 25, 40, upstream="b"),  # whose call is left out
        row("d", 45, 50, upstream="sorter"),  # which makes no calls
        row("e", 55, 60, upstream="c"),
        row("f", 65, 70, upstream="tool"),
    ]

    assert {call.agent: call.upstream for call in workflow_calls(rows)} == {
        "a": "user",
        "c": None,
        "d": None,
        "e": "c",
        "f": "tool",
    }


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("all", None),
        ("0s", NOW),
        ("90s", NOW - 90 * SECOND),
        ("15m", NOW - 900 * SECOND),
        ("1.5h", NOW - 5400 * SECOND),
        ("7d", NOW - 7 * 86_400 * SECOND),
        ("1970-01-02T00:00:01Z", 86_401 * SECOND),
        ("1970-01-02T02:00+02:00", 86_400 * SECOND),
        ("2025-06-30", round(datetime(2025, 6, 30).timestamp()) * SECOND),
        ("2025-06-30T12:00", round(datetime(2025, 6, 30, 12).timestamp()) * SECOND),
    ],
)
def test_the_beginning_is_a_duration_an_instant_or_all(text, at):
    assert parse_since(text, NOW) == at


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "2 h", "1e3s", "2w", "yesterday", "25:00", "٢h"]
)
def test_a_beginning_that_is_none_is_refused_by_what_it_may_be(text):
    with pytest.raises(SetupError, match=r"not a time to begin at: write a duration \(30s"):
        parse_since(text, NOW)


@given(st.text(max_size=12))
def test_whatever_is_said_of_the_beginning_it_is_an_instant_or_refused(text):
    try:
        at = parse_since(text, NOW)
    except SetupError:
        return
    assert at is None or isinstance(at, int)


def call(name, workflow_id, begins_s, *, started_s=None, end=Finished):
    """Facts of a call of one second, in order."""
    at = begins_s * SECOND
    started_at = at if started_s is None else started_s * SECOND
    made = build.request(
        name, at=at, workflow_id=workflow_id, workflow_started_at=started_at, app="demo"
    )
    facts = [Record(at, Arrived(made), (Dispatch(name, "i"),))]
    if end is Finished:
        facts.append(Record(at + SECOND, Finished(name, 10, 5)))
    elif end is Failed:
        facts.append(Record(at + SECOND, Failed(name, "engine")))
    return facts


BEGIN = Record(100 * SECOND, InstanceJoined(build.instance("i")))
FACTS = [
    BEGIN,
    *call("old", "old", 100, started_s=99),
    *call("first", "first", 110),
    *call("again", "first", 130),
    *call("second", "second", 120),
    *call("lost", "lost", 140, end=Failed),
    Record(141 * SECOND, ProfilesLearnt()),
    Record(142 * SECOND, WorkflowEnded("default", "first")),
    *call("open", "open", 150),
    *call("opened", "open", 155, end=None),
]


@pytest.fixture
def log(tmp_path):
    """Writes a log and returns its directory."""

    def write(facts):
        kept = FactLog(tmp_path / "log")
        for record in facts:
            kept(record)
        kept.close()
        return tmp_path / "log"

    return write


def names(path):
    return [workflow.workflow_id for workflow in read_workflows(path)]


@pytest.mark.parametrize(
    ("since_s", "exported", "before"),
    [
        (None, ["old", "first", "first", "second"], 0),
        (0, ["first", "first", "second"], 1),
        (110, ["first", "first", "second"], 1),
        (111, ["second"], 2),
        (120, ["second"], 2),
    ],
)
def test_workflows_are_whole_or_left_out_and_counted(log, tmp_path, since_s, exported, before):
    path = tmp_path / "out.jsonl"
    result = export_workflows(log(FACTS), None if since_s is None else since_s * SECOND, path)

    assert names(path) == exported
    fates = {"exported": len(set(exported)), "under way": 1, "without lengths": 1}
    fates |= {"began before": before} if before else {}
    assert result == Exported(len(exported), fates)


def test_a_last_line_that_was_cut_short_is_no_hindrance(log, tmp_path):
    directory = log(FACTS[:3])
    (file,) = directory.iterdir()
    with file.open("ab") as end:
        end.write(b'{"at": 12, "event"')

    assert export_workflows(directory, None, tmp_path / "out.jsonl").calls == 1


def test_a_line_that_is_no_record_is_named_and_nothing_is_written(log, tmp_path):
    directory = log(FACTS)
    (file,) = directory.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"garbage\n", *lines[2:]]))

    with pytest.raises(InvalidFile, match=r"facts-000001\.jsonl:3: invalid record"):
        export_workflows(directory, None, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("facts", "since_s", "message"),
    [
        ([], 0, "there are no facts in .*log: name the directory of a log"),
        ([BEGIN], 0, r"no workflow in .*log can be exported \(there is none\)"),
        (FACTS, 999, r"can be exported \(4 began before, 1 under way\)"),
    ],
)
def test_where_there_is_nothing_to_export_it_says_why(log, tmp_path, facts, since_s, message):
    path = tmp_path / "out.jsonl"
    path.write_text("kept")

    with pytest.raises(SetupError, match=message):
        export_workflows(log(facts), since_s * SECOND, path)
    assert path.read_text() == "kept"


def test_a_log_that_does_not_exist_is_said(tmp_path):
    with pytest.raises(SetupError, match=r"there is no directory .*nowhere"):
        export_workflows(tmp_path / "nowhere", None, tmp_path / "out.jsonl")
