"""A workflow as its log tells it, and as a person sees it."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from kairos.core import (
    SECOND,
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    Record,
    Refuse,
    SetupError,
    Sources,
    WorkflowEnded,
)
from kairos.core.orchestrator.orchestrator import MAX_ENDED
from kairos.observe import FactLog, explain_from_log
from kairos.observe.explain import explained
from tests.support.simulate import build

BEGIN = Record(0, InstanceJoined(build.instance("i")))


def arrives(at, name, *dispatches, workflow_id="w", **said):
    made = build.request(
        name, at=at * SECOND, workflow_id=workflow_id, workflow_started_at=0, app="demo", **said
    )
    return Record(at * SECOND, Arrived(made), dispatches)


def goes(name, reason="first", waiting=0, remaining_s=None, rank_s=None):
    def in_us(seconds):
        return None if seconds is None else int(seconds * SECOND)

    return Dispatch(name, "i", reason, waiting, in_us(remaining_s), in_us(rank_s))


def ends(at, name, *dispatches, fact=Finished):
    made = Finished(name, 10, 5) if fact is Finished else fact(name, "engine")
    return Record(at * SECOND, made, dispatches)


END = WorkflowEnded("default", "w")


@pytest.fixture
def log(tmp_path):
    """Writes a log and returns its directory."""

    def write(*records):
        kept = FactLog(tmp_path / "log")
        for record in records:
            kept(record)
        kept.close()
        return tmp_path / "log"

    return write


def shown(view, costs=None):
    out = io.StringIO()
    Console(file=out, width=200).print(explained(view, costs or {}))
    return out.getvalue()


def test_what_remained_is_not_told_where_a_failure_cut_it_short(log):
    records = [BEGIN, arrives(1, "a", goes("a")), ends(2, "a")]
    records += [arrives(3, "b", goes("b"), parent_ids=("a",)), ends(4, "b", fact=Failed)]
    view = explain_from_log(log(*records, Record(5 * SECOND, END)), None, "w")

    assert [call.outcome for call in view.calls] == ["finished", "failed"]
    assert [call.remaining_s for call in view.calls] == [None, None]


def test_why_a_call_failed_or_was_refused_is_told(log):
    turned_away = Refuse("b", "m", "too_late", needs_us=SECOND)
    records = [BEGIN, arrives(1, "a", goes("a"), agent="first"), ends(2, "a", fact=Failed)]
    records += [arrives(3, "b", turned_away, agent="second"), arrives(4, "c", goes("c"))]
    view = explain_from_log(log(*records, Record(5 * SECOND, Cancelled("c"))), None, "w")

    assert [call.why for call in view.calls] == ["engine", "too_late", None]
    assert "for 1.000 s; it failed: engine\n" in shown(view)
    assert "for 1.000 s; it was cancelled\n" in shown(view)
    late = "refused after it had waited 0.000 s: it could not finish by its deadline\n"
    assert late in shown(view)


def test_calls_that_are_still_running_have_their_place_beside_each_other(log):
    view = explain_from_log(
        log(
            BEGIN,
            arrives(1, "a", goes("a"), agent="lead"),
            ends(2, "a"),
            arrives(3, "b", goes("b"), upstream="lead"),
            arrives(4, "c", goes("c"), upstream="lead"),
            Record(5 * SECOND, FirstToken("c")),
        ),
        None,
        "w",
    )

    assert view.calls[0].stages == [["b", "c"]]


def test_a_workflow_is_found_however_many_ended_after_it(log):
    records = [arrives(1, "a", goes("a")), ends(2, "a"), Record(2 * SECOND, END)]
    for n in range(MAX_ENDED):
        records += [arrives(3, f"x{n}", workflow_id=f"v{n}"), ends(3, f"x{n}")]
        records.append(Record(3 * SECOND, WorkflowEnded("default", f"v{n}")))

    assert explain_from_log(log(BEGIN, *records), None, "w").ended_at == 2 * SECOND


def test_another_tenants_call_that_makes_room_for_ours_stays_out(log):
    view = explain_from_log(
        log(
            BEGIN,
            arrives(1, "a", tenant="acme"),
            arrives(2, "b", goes("b"), goes("a"), tenant="bell"),
        ),
        "acme",
        "w",
    )

    (call,) = view.calls
    assert (call.id, call.dispatched_at) == ("a", 2 * SECOND)


def test_a_workflow_of_which_nothing_more_is_heard_ended_idle(log):
    records = [arrives(1, "a", goes("a")), ends(2, "a"), arrives(9_999, "x", workflow_id="v")]
    view = explain_from_log(log(BEGIN, *records), None, "w")

    assert (view.ended_by, view.ended_at) == ("idle", 2 * SECOND)


def test_a_workflow_of_several_tenants_is_shown_once_one_is_named(log):
    directory = log(BEGIN, arrives(1, "a", tenant="acme"), arrives(2, "b", tenant="bell"))

    with pytest.raises(SetupError, match=r"several tenants have a workflow 'w': .* acme, bell"):
        explain_from_log(directory, None, "w")
    assert [call.id for call in explain_from_log(directory, "bell", "w").calls] == ["b"]
    with pytest.raises(SetupError, match="has no workflow 'w'"):
        explain_from_log(directory, "nobody", "w")


@pytest.mark.parametrize("records", [[], [BEGIN, arrives(1, "a", workflow_id="v")]])
def test_a_workflow_that_is_not_in_the_log_is_said(log, records):
    with pytest.raises(SetupError, match="log has no workflow 'w'"):
        explain_from_log(log(*records), None, "w")


def test_a_log_that_does_not_exist_is_said(tmp_path):
    with pytest.raises(SetupError, match=r"there is no directory .*nowhere"):
        explain_from_log(tmp_path / "nowhere", None, "w")


def test_what_said_who_calls_is_shown(log):
    known = Sources("declared", app="route", upstream="declared")
    view = explain_from_log(log(BEGIN, arrives(1, "a"), arrives(2, "b", sources=known)), None, "w")

    first, second = view.calls
    assert set(first.sources.values()) == {"none"}
    assert second.sources == {
        "workflow_id": "declared", "app": "route", "agent": "none", "upstream": "declared",
    }  # fmt: skip
    out = shown(view)
    assert out.index("the caller is unknown") < out.index(" b\n")
    assert "workflow, upstream declared; app route" in out


def test_a_chain_is_a_list_and_only_several_calls_go_further_in(log):
    view = explain_from_log(
        log(
            BEGIN,
            arrives(1, "a-1", goes("a-1", remaining_s=8.0, rank_s=2.5, waiting=3), agent="plan"),
            ends(3, "a-1"),
            arrives(3, "b-1", goes("b-1", "overdue"), agent="look", parent_ids=("a-1",)),
            ends(4, "b-1"),
            arrives(5, "c-1", goes("c-1"), agent="left", parent_ids=("b-1",)),
            arrives(5, "d-1", goes("d-1"), agent="right", parent_ids=("b-1",)),
            ends(8, "c-1"),
            ends(9, "d-1"),
            arrives(9, "e-1", goes("e-1"), agent="merge", parent_ids=("c-1", "d-1")),
            ends(10, "e-1"),
            Record(12 * SECOND, END),
        ),
        None,
        "w",
    )
    lines = shown(view).splitlines()
    calls = [line for line in lines if "-1" in line or "at once" in line]

    assert lines[0] == "w of demo: ended after 12.00 s"
    assert calls == [
        "├── plan a-1",
        "└── look b-1",
        "    ├── 2 at once",
        "    │   ├── left c-1",
        "    │   └── right d-1",
        "    └── merge (joins 2 calls) e-1",
    ]
    assert "waited 0.000 s, then ran on i for 2.000 s, 10 + 5 tokens" in lines[2]
    assert "its turn: first by policy; 3 others stayed waiting, rank 2.50" in lines[3]
    assert "expected work of the workflow from here on: 8.00 s; it was 8.00 s" in lines[4]
    assert "the starvation guard moved it forward" in shown(view)
    assert lines[-1] == "5 calls: 0.00 s of waiting, 11.00 s on instances"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (0, "; of 3 waiting tenants, its own had had the least service for its weight"),
        (1, "; of 3 waiting tenants, its own had had more than 1 without a call that fitted"),
    ],
)
def test_where_several_tenants_wait_it_says_why_it_was_this_ones_turn(log, before, said):
    command = replace(goes("a-1"), tenants=2, tenants_before=before)
    view = explain_from_log(
        log(BEGIN, arrives(1, "a-1", command, agent="a"), ends(2, "a-1")), None, "w"
    )
    assert said in shown(view)
    alone = explain_from_log(log(BEGIN, arrives(1, "a-1", goes("a-1")), ends(2, "a-1")), None, "w")
    assert "tenants" not in shown(alone)


def test_calls_that_wait_run_fail_or_have_no_known_parent_say_so(log):
    view = explain_from_log(
        log(
            BEGIN,
            arrives(1, "a-1", goes("a-1"), agent="a"),
            ends(2, "a-1", fact=Failed),
            arrives(3, "a-1", goes("a-1"), agent="a", attempt=2),
            ends(5, "a-1"),
            arrives(5, "b-1", goes("b-1"), parent_ids=("lost-1",)),
            arrives(6, "c-1", agent="c", parent_ids=("a-1",)),
            Record(9 * SECOND, FirstToken("b-1")),
        ),
        None,
        "w",
    )
    text = shown(view)

    assert "w of demo: open" in text
    assert "then ran on i for 2.000 s, 10 + 5 tokens, attempt 2" in text
    assert "a call without a name (its parent lost-1 is unknown) b-1" in text
    assert "then ran on i, and still does" in text
    assert "has waited 3.000 s" in text


def test_a_workflow_of_thousands_of_calls_in_a_row_is_shown(log):
    records = [BEGIN]
    for n in range(2000):
        parents = (f"c-{n - 1}",) * (n > 0)
        records += [arrives(n, f"c-{n}", goes(f"c-{n}"), parent_ids=parents), ends(n + 1, f"c-{n}")]

    assert shown(explain_from_log(log(*records), None, "w")).count("a call without a name") == 2000
