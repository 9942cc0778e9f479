"""Rows E3, E4, E12 and H6 of the design, on an engine that answers by a script."""

import pytest

from kairos import flow
from kairos.core import SetupError
from kairos.workflows import FlowLimits, IssueCall, RunFunction
from kairos.workflows.execute.commands import (
    DropRow,
    EndRun,
    FailRow,
    KeepResult,
    ReadGroups,
    ReadRows,
    WriteRow,
)
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CallAnswered,
    CallBroke,
    CapacityTold,
    GroupRead,
    GroupsEnded,
    InputEnded,
    Known,
    RowRead,
    RowUnreadable,
    StopAsked,
)
from tests.support.workflows.flow_world import FlowWorld, Journal


def echo(messages, attempt):
    return "re: " + messages[-1]["content"]


def ask(*, f=None, **how):
    """A flow of one call a row."""
    f = f or flow.Flow("ask")
    row = f.input("row")
    f.output("answer", f.llm("ask", "{{ row.q }}", row=row, **how))
    return f


def summaries(**how):
    """Questions about contexts, which rows share."""
    f = flow.Flow("summaries")
    row = f.input("row")
    context = f.llm("context", "Sum up {{ row.context }}", row=row, **how)
    f.output("a", f.llm("ask", "{{ c }}: {{ row.question }}", c=context, row=row))
    return f


def size(obj):
    return len(obj)


def contexts(rows, distinct):
    return [{"context": f"c{n % distinct}", "question": f"q{n}"} for n in range(rows)]


def run(plan, rows, answer=echo, **more):
    world = FlowWorld(plan, rows, answer, **more)
    assert world.run()
    return world


def calls_of(world, operator):
    return [each for each in world.issued if each.operator == operator]


def test_one_row_goes_through_in_facts_and_commands():
    executor = Executor(
        ask(max_tokens=9).compile(flow.Passes(cached=False)), FlowLimits(capacity=1)
    )
    assert executor.start() == [ReadRows(3)]
    (call,) = executor.handle(RowRead(0, {"q": "why?"}))
    assert call == IssueCall(
        call=1,
        stage=0,
        node="ask",
        row=0,
        attempt=1,
        operator="ask",
        model=None,
        body={
            "messages": [{"role": "user", "content": "why?"}],
            "temperature": 0.0,
            "max_tokens": 9,
        },
        signature=call.signature,
        delay_us=0,
    )
    assert executor.handle(InputEnded()) == []
    assert executor.handle(CallAnswered(1, "so", prompt_tokens=4, completion_tokens=1)) == [
        KeepResult(0, "ask", 0, call.signature, "so", "called", store=True),
        WriteRow(0, 0, {"answer": "so"}),
        EndRun("done"),
    ]
    assert executor.figures.prompt_tokens == 4
    assert (executor.figures.written, executor.figures.open) == (1, 0)


def test_a_large_pool_is_full_of_rows_with_one_call_each():
    executor = Executor(ask().compile(flow.Passes(cached=False)), FlowLimits(capacity=8_192))

    def reads(commands):
        return sum(each.count for each in commands if isinstance(each, ReadRows))

    wanted, read = reads(executor.start()), 0
    while read < wanted:
        wanted += reads(executor.handle(RowRead(read, {"q": str(read)})))
        read += 1

    assert executor.figures.in_flight == 10_000  # what a balancer's queue holds
    assert executor.figures.open == 18_192


def test_e3_six_hundred_rows_with_a_hundred_contexts_make_a_hundred_calls():
    world = run(summaries().compile(), contexts(600, 100), limits=FlowLimits(capacity=8))
    assert len(calls_of(world, "context")) == 100
    assert len(calls_of(world, "ask")) == 600
    assert world.executor.figures.merged == 500
    assert len(world.table()["written"]) == 600


def test_e3_sampled_calls_are_never_merged():
    world = run(summaries(temperature=0.5).compile(), contexts(60, 10))
    assert len(calls_of(world, "context")) == 60
    assert world.executor.figures.merged == 0


def test_e3_without_the_pass_each_row_makes_its_own():
    plan = summaries().compile(flow.Passes(cse=False, cached=False))
    assert len(calls_of(run(plan, contexts(60, 10)), "context")) == 60


def test_equal_calls_in_flight_are_one():
    plan = ask().compile(flow.Passes(cached=False))
    executor = Executor(plan, FlowLimits(capacity=4, memo_bytes=0))
    executor.start()
    assert len(executor.handle(RowRead(0, {"q": "x"}))) == 1
    assert [type(each) for each in executor.handle(RowRead(1, {"q": "x"}))] in ([], [ReadRows])
    commands = executor.handle(CallAnswered(1, "y"))
    assert [(e.row, e.origin, e.store) for e in commands if isinstance(e, KeepResult)] == [
        (0, "called", True),
        (1, "merged", False),
    ]
    assert [each.row for each in commands if isinstance(each, WriteRow)] == [0, 1]


def test_e4_a_second_run_over_unchanged_rows_makes_no_call_and_an_edit_only_what_depends_on_it():
    rows = contexts(60, 10)
    first = run(summaries().compile(), rows)
    kept = Journal()
    kept.cache = first.journal.cache
    assert run(summaries().compile(), rows, journal=kept).issued == []

    kept = Journal()
    kept.cache = first.journal.cache
    f = flow.Flow("edited")
    row = f.input("row")
    context = f.llm("renamed", "Sum up {{ r }}", r=row["context"])
    f.output("a", f.llm("ask", "{{ c }}? {{ row.question }}", c=context, row=row))
    edited = run(f.compile(), rows, journal=kept)
    assert calls_of(edited, "renamed") == []
    assert len(calls_of(edited, "ask")) == 60
    assert edited.executor.figures.fetched == 10


def test_e4_the_memo_is_bounded_and_what_it_forgot_is_fetched():
    limits = FlowLimits(capacity=2, memo_bytes=1_000)
    world = run(summaries().compile(), contexts(60, 10), limits=limits)
    assert len(calls_of(world, "context")) == 10
    assert world.executor.figures.fetched > 0
    no_cache = summaries().compile(flow.Passes(cached=False))
    assert len(calls_of(run(no_cache, contexts(60, 10), limits=limits), "context")) > 10


def test_an_edited_flow_goes_on_with_the_results_that_its_edit_leaves_as_they_are():
    rows = contexts(20, 20)
    journal = Journal()
    first = FlowWorld(summaries().compile(), rows, echo, journal=journal)
    assert not first.run(crash_after=60)
    first.commit(len(first.written))
    known = len(journal.results)
    assert known > 5
    f = summaries()
    f.output("n", f.format("n", "new"))
    second = run(f.compile(flow.Passes(cached=False)), rows, journal=journal)
    assert second.executor.figures.resumed > 0
    assert len(first.issued) + len(second.issued) <= 40 + first.in_flight


def test_h6_no_engine_is_idle_while_a_call_is_ready_and_rows_are_read_ahead():
    limits = FlowLimits(capacity=4)
    plan = ask().compile(flow.Passes(cached=False))
    executor = Executor(plan, limits)
    asked = sum(each.count for each in executor.start())
    in_flight, row, calls = 0, 0, []
    for _ in range(500):
        commands = []
        while asked:
            asked -= 1
            commands += executor.handle(RowRead(row, {"q": f"{row}"}))
            asked += sum(e.count for e in commands if isinstance(e, ReadRows))
            issued = [each for each in commands if isinstance(each, IssueCall)]
            calls += issued
            in_flight += len(issued)
            commands = []
            row += 1
        assert in_flight == 8  # two windows: each engine's next call is there
        done = executor.handle(CallAnswered(calls.pop(0).call, "a"))
        in_flight += sum(isinstance(each, IssueCall) for each in done) - 1
        calls += [each for each in done if isinstance(each, IssueCall)]
        asked += sum(each.count for each in done if isinstance(each, ReadRows))
        assert in_flight == 8
        assert executor.figures.open <= 12


def test_windows_follow_the_engines():
    executor = Executor(ask().compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    for row in range(3):
        commands = executor.handle(RowRead(row, {"q": f"{row}"}))
    assert executor.figures.in_flight == 2
    commands = executor.handle(CapacityTold(5))
    assert executor.figures.in_flight == 3
    assert [type(each) for each in commands] == [IssueCall, ReadRows]
    executor.handle(CapacityTold(10**6))
    for row in range(3, 20_000):
        executor.handle(RowRead(row, {"q": f"{row}"}))
    assert executor.figures.in_flight == 10_000


def test_large_rows_are_read_a_few_at_a_time():
    limits = FlowLimits(capacity=100, max_open_bytes=1_000)
    executor = Executor(ask().compile(), limits)
    assert executor.start() == [ReadRows(3)]
    commands = executor.handle(RowRead(0, {"q": "a"}, size_bytes=400))
    assert not [each for each in commands if isinstance(each, ReadRows)]
    executor.handle(RowRead(1, {"q": "b"}, size_bytes=400))
    executor.handle(RowRead(2, {"q": "c"}, size_bytes=5_000))
    assert executor.figures.open == 3


def test_as_many_rows_are_read_as_fit_by_the_size_of_the_largest():
    limits = FlowLimits(capacity=100, max_open_bytes=1_000)
    executor = Executor(ask().compile(flow.Passes(cached=False)), limits)
    executor.start()
    for row in range(3):
        executor.handle(RowRead(row, {"q": f"{row}"}, size_bytes=400))
    executor.handle(CallAnswered(1, "a"))
    assert ReadRows(1) in executor.handle(CallAnswered(2, "a"))
    assert ReadRows(1) in executor.handle(CallAnswered(3, "a"))
    # Those that are larger than all that may be open are read one by one.
    executor.handle(RowRead(3, {"q": "3"}, size_bytes=50_000))
    executor.handle(RowRead(4, {"q": "4"}, size_bytes=50_000))
    assert not [e for e in executor.handle(CallAnswered(4, "a")) if isinstance(e, ReadRows)]
    assert ReadRows(1) in executor.handle(CallAnswered(5, "a"))


def test_the_end_of_the_table_may_be_told_again_while_groups_are_read():
    f = flow.Flow("f")
    row = f.input("row")
    groups = f.group("g", "row.k", row["q"], row=row)
    f.output("key", groups["key"])
    executor = Executor(f.compile(), FlowLimits(capacity=1))
    executor.start()
    executor.handle(RowRead(0, {"k": "a", "q": 1}))
    assert isinstance(executor.handle(InputEnded())[0], ReadGroups)
    assert executor.handle(InputEnded()) == []
    assert executor.handle(GroupRead(0, "a", [1]))[0] == WriteRow(1, 0, {"key": "a"})
    assert executor.handle(GroupsEnded()) == [EndRun("done")]


def test_what_a_failed_row_still_wanted_is_not_looked_for_and_its_answers_are_not_kept():
    f = flow.Flow("f")
    row = f.input("row")
    f.output("bad", f.format("bad", "{{ row.missing }}", row=row))
    f.output("a", f.llm("ask", "{{ row.q }}", row=row))
    executor = Executor(f.compile(), FlowLimits(capacity=1))
    executor.start()
    assert executor.handle(RowRead(0, {"q": "x"}))[0] == FailRow(
        0, 0, "bad", "the template cannot be filled: there is no 'missing'"
    )
    f = flow.Flow("f")
    row = f.input("row")
    for name in ("a", "b"):
        f.output(name, f.llm(name, "{{ n }} {{ row.q }}", n=name, row=row))
    executor = Executor(f.compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    executor.handle(RowRead(0, {"q": "x"}))
    executor.handle(CallBroke(1, "no", retry=False))
    assert [type(each) for each in executor.handle(CallAnswered(2, "late"))] == [ReadRows]


def test_a_call_that_no_row_wants_any_more_is_not_tried_again():
    f = flow.Flow("f")
    row = f.input("row")
    for name in ("a", "b"):
        f.output(name, f.llm(name, "{{ n }} {{ row.q }}", n=name, row=row))
    executor = Executor(f.compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    executor.handle(RowRead(0, {"q": "x"}))
    executor.handle(CallBroke(1, "no", retry=False))
    again = executor.handle(CallBroke(2, "busy", retry=True))
    assert not [each for each in again if isinstance(each, IssueCall)]
    assert executor.figures.in_flight == 0


def test_what_decides_whether_a_loop_goes_on_is_not_asked_in_its_last_round():
    f = flow.Flow("f")
    row = f.input("row")

    def body(state):
        better = f.llm("better", "{{ s }}!", s=state)
        f.llm("judge", "Good? {{ b }}", b=better)
        return better

    f.output("text", f.loop("refine", row["q"], body, max_rounds=3, until="judge == 'yes'"))
    world = run(f.compile(), [{"q": "a"}])
    assert [each.node for each in world.issued] == [
        "refine.0.better",
        "refine.0.judge",
        "refine.1.better",
        "refine.1.judge",
        "refine.2.better",
    ]


def test_earlier_rows_go_first():
    f = flow.Flow("f")
    row = f.input("row")
    first = f.llm("first", "{{ row.q }}", row=row)
    f.output("b", f.llm("then", "{{ x }}", x=first))
    executor = Executor(f.compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    for number in range(5):
        executor.handle(RowRead(number, {"q": f"{number}"}))
    commands = executor.handle(CallAnswered(1, "one"))
    (issued,) = [each for each in commands if isinstance(each, IssueCall)]
    assert (issued.node, issued.row) == ("then", 0)


@pytest.mark.parametrize(
    ("on_error", "ends"),
    [
        ("fail", FailRow(0, 0, "ask", "it said no")),
        ("skip", DropRow(0, 0)),
        ("default", WriteRow(0, 0, {"answer": {"n": 0}})),
    ],
)
def test_a_call_that_breaks_fails_its_row_skips_or_has_a_default(on_error, ends):
    plan = ask(on_error=on_error, default={"n": 0}).compile(flow.Passes(cached=False))
    executor = Executor(plan, FlowLimits(capacity=1))
    executor.start()
    executor.handle(RowRead(0, {"q": "x"}))
    assert ends in executor.handle(CallBroke(1, "it said no", retry=False))


def test_a_call_that_may_work_again_is_made_again_later_and_later():
    executor = Executor(ask(retries=2).compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    (first,) = executor.handle(RowRead(0, {"q": "x"}))
    executor.handle(InputEnded())
    (second,) = executor.handle(CallBroke(1, "busy", retry=True))
    (third,) = executor.handle(CallBroke(1, "busy", retry=True))
    assert [(e.attempt, e.delay_us) for e in (first, second, third)] == [
        (1, 0),
        (2, 500_000),
        (3, 1_000_000),
    ]
    assert executor.handle(CallBroke(1, "busy", retry=True)) == [
        FailRow(0, 0, "ask", "busy"),
        EndRun("done"),
    ]


def test_a_row_that_fails_leaves_others_alone_and_its_other_calls_unmade():
    f = flow.Flow("f")
    row = f.input("row")
    for name in ("a", "b", "c"):
        f.output(name, f.llm(name, "{{ n }} {{ row.q }}", n=name, row=row))
    executor = Executor(f.compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    issued = executor.handle(RowRead(0, {"q": "x"}))
    assert [each.node for each in issued] == ["a", "b"]
    executor.handle(RowRead(1, {"q": "x"}))
    commands = executor.handle(CallBroke(1, "no", retry=False))
    assert commands[0] == FailRow(0, 0, "a", "no")
    # `c` was not made for row 0, and is for row 1, whose `a` fails with it.
    assert [(e.node, e.row) for e in commands if isinstance(e, IssueCall)] == []
    assert FailRow(0, 1, "a", "no") in commands


@pytest.mark.parametrize(
    ("answer", "cut", "said"),
    [
        ("not json", None, "the answer is not JSON: JSON is malformed"),
        ('{"n": 1', "it was cut", "the answer is not whole: it was cut"),
        ('{"m": 1}', None, "does not keep to its schema: it has no 'n'"),
        ("[" * 5_000, None, "the answer is not JSON"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_fails_its_row(answer, cut, said):
    plan = ask(schema={"type": "object", "required": ["n"]}).compile(flow.Passes(cached=False))
    executor = Executor(plan, FlowLimits(capacity=1))
    executor.start()
    (call,) = executor.handle(RowRead(0, {"q": "x"}))
    assert call.body["response_format"]["json_schema"]["schema"]["required"] == ["n"]
    commands = executor.handle(CallAnswered(1, answer, cut=cut))
    (failed,) = [each for each in commands if isinstance(each, FailRow)]
    assert said in failed.error


def test_a_row_without_what_it_needs_fails_alone():
    world = run(ask().compile(), [{"q": "a"}, {"p": "b"}, {"q": None}])
    assert world.table()["failed"] == {(0, 1)}
    (failed,) = [e for e in world.journal.ended.values() if isinstance(e, FailRow)]
    assert failed.error == "the template cannot be filled: there is no 'q'"


def test_a_row_that_cannot_be_read_is_one_failed_row():
    executor = Executor(ask().compile(), FlowLimits(capacity=1))
    executor.start()
    commands = executor.handle(RowUnreadable(7, "it has 10 MB"))
    assert commands[0] == FailRow(0, 7, "", "it has 10 MB")
    assert executor.handle(InputEnded()) == [EndRun("done")]
    assert executor.figures.failed == 1


def test_a_run_that_is_asked_to_stop_begins_nothing_more():
    executor = Executor(ask().compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    for row in range(4):
        executor.handle(RowRead(row, {"q": f"{row}"}))
    assert executor.handle(StopAsked()) == []
    assert [type(e) for e in executor.handle(CallAnswered(1, "a"))] == [KeepResult, WriteRow]
    assert executor.handle(CallAnswered(2, "b"))[-1] == EndRun("stopped")
    assert executor.handle(RowRead(9, {"q": "late"})) == []


def test_a_budget_of_calls_ends_the_run_and_a_larger_one_goes_on():
    rows = contexts(20, 20)
    journal = Journal()
    limits = FlowLimits(capacity=3, max_calls=11)
    world = run(summaries().compile(), rows, journal=journal, limits=limits)
    assert (world.end, len(world.issued)) == ("budget", 11)
    more = run(summaries().compile(), rows, journal=journal)
    assert more.end == "done"
    assert len(more.issued) == 29
    assert len(more.table()["written"]) == 20


def test_a_budget_of_tokens_counts_calls_in_flight_as_long_as_they_may_be():
    plan = ask(max_tokens=100).compile(flow.Passes(cached=False))
    executor = Executor(plan, FlowLimits(capacity=4, max_tokens=250))
    executor.start()
    for row in range(4):
        executor.handle(RowRead(row, {"q": f"{row}"}))
    assert executor.figures.in_flight == 2
    used = executor.handle(CallAnswered(1, "a", prompt_tokens=10, completion_tokens=20))
    assert [type(each) for each in used] == [KeepResult, WriteRow, IssueCall]
    executor.handle(CallAnswered(2, "a", prompt_tokens=10, completion_tokens=90))
    end = executor.handle(CallAnswered(3, "a", prompt_tokens=10, completion_tokens=90))
    assert end[-1] == EndRun("budget")


def test_a_function_with_an_effect_has_a_key_and_is_never_merged():
    f = flow.Flow("f")
    row = f.input("row")
    f.output("sent", f.call("send", print, value=row["q"]))
    world = run(f.compile(), [{"q": "x"}] * 3, functions={"print": lambda value: "ok"})
    assert [each.idempotency_key for each in world.ran] == [f"0/send/{n}" for n in (0, 1, 2)]

    f = flow.Flow("f")
    row = f.input("row")
    f.output("n", f.call("count", size, purity="pure", obj=row["q"]))
    world = run(f.compile(), [{"q": "x"}] * 3, functions={"size": size})
    assert [(each.idempotency_key, each.arguments) for each in world.ran] == [(None, {"obj": "x"})]


def test_a_branch_computes_the_chosen_case_alone():
    f = flow.Flow("f")
    row = f.input("row")
    cases = {c: f.llm(c, "{{ c }} {{ row.q }}", c=c, row=row) for c in ("bug", "idea")}
    chosen = f.branch("route", "row.kind | trim | lower", cases, otherwise="none", row=row)
    f.output("text", chosen)
    rows = [{"kind": kind, "q": "x"} for kind in (" Bug", "idea", "other", "bug")]
    world = run(f.compile(), rows)
    assert sorted(each.operator for each in world.issued) == ["bug", "idea"]
    texts = {row: values["text"] for (_, row), values in world.table()["written"].items()}
    assert texts == {0: "re: bug x", 1: "re: idea x", 2: "none", 3: "re: bug x"}


def test_a_loop_ends_when_it_is_told_to_and_after_its_rounds():
    f = flow.Flow("f")
    row = f.input("row")
    text = f.loop(
        "refine",
        row["q"],
        lambda state: f.llm("better", "{{ s }}!", s=state),
        max_rounds=4,
        until="'!!' in state",
    )
    f.output("text", text)
    world = run(f.compile(), [{"q": "a"}, {"q": "b!!"}], lambda m, attempt: m[-1]["content"])
    assert [each.node for each in world.issued if each.row == 0] == [
        "refine.0.better",
        "refine.1.better",
    ]
    texts = [values["text"] for _, values in sorted(world.table()["written"].items())]
    assert texts == ["a!!", "b!!!"]


def test_a_loop_whose_end_is_decided_by_what_is_not_there_ends():
    f = flow.Flow("f")
    row = f.input("row")

    def body(state):
        better = f.llm("better", "{{ s }}!", s=state)
        f.filter("long", better, "b | length > 100", b=better)
        return better

    f.output("text", f.loop("refine", row["q"], body, max_rounds=3, until="long == 'x'"))
    assert len(run(f.compile(), [{"q": "a"}]).issued) == 1


def test_an_operator_follows_those_that_it_is_after():
    f = flow.Flow("f")
    row = f.input("row")
    sent = f.call("send", print, value=row["q"])
    f.output("a", f.llm("ask", "{{ row.q }}", row=row, after=[sent]))
    executor = Executor(f.compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    commands = executor.handle(RowRead(0, {"q": "x"}))
    (ran,) = [each for each in commands if not isinstance(each, ReadRows)]
    assert isinstance(ran, RunFunction)
    assert isinstance(executor.handle(CallAnswered(ran.call, None))[1], IssueCall)


def test_where_one_input_is_nothing_and_another_is_missing_there_is_nothing():
    for first in (True, False):
        f = flow.Flow("f")
        row = f.input("row")
        gone = f.filter("gone", row["q"], "false")
        missing = row["missing"]
        bound = {"a": gone, "b": missing} if first else {"a": missing, "b": gone}
        f.output("text", f.format("text", "{{ a }}{{ b }}", inputs=bound))
        assert run(f.compile(), [{"q": "a"}]).table()["dropped"] == {(0, 0)}


def test_a_key_of_a_group_has_a_bound():
    f = flow.Flow("f")
    row = f.input("row")
    f.output("key", f.group("g", "row.k", row["k"], row=row)["key"])
    world = run(f.compile(), [{"k": "x" * 1_001}, {"k": "y" * 1_000}])
    assert world.table()["failed"] == {(0, 0)}
    assert world.table()["written"] == {(1, 0): {"key": "y" * 1_000}}


def test_a_map_goes_over_a_list_that_is_known_at_run_time_in_order():
    f = flow.Flow("f")
    row = f.input("row")
    parts = f.map("each", row["list"], lambda item: f.llm("one", "{{ i }}", i=item), max_items=3)
    f.output("parts", parts)
    rows = [{"list": ["a", "b", "c"]}, {"list": []}, {"list": ["a"] * 4}, {"list": "abc"}]
    world = run(f.compile(), rows, seed=3)
    assert world.table()["written"] == {
        (0, 0): {"parts": ["re: a", "re: b", "re: c"]},
        (0, 1): {"parts": []},
    }
    assert world.table()["failed"] == {(0, 2), (0, 3)}


def test_a_group_waits_for_all_rows_and_gives_a_row_for_each_group():
    f = flow.Flow("f")
    row = f.input("row")
    short = f.llm("short", "{{ row.q }}", row=row)
    groups = f.group("topics", "row.topic", short, row=row)
    f.output("topic", groups["key"])
    f.output("all", f.llm("merge", "{{ g['items'] | join('+') }}", g=groups))
    rows = [{"topic": "ab"[n % 2], "q": f"{n}"} for n in range(5)]
    world = run(f.compile(), rows, seed=5)
    assert world.table()["written"] == {
        (1, 0): {"topic": "a", "all": "re: re: 0+re: 2+re: 4"},
        (1, 1): {"topic": "b", "all": "re: re: 1+re: 3"},
    }
    stages = [each.stage for each in world.issued]
    assert stages == sorted(stages)
    assert world.executor.figures.gathered == 5


def test_a_group_that_no_output_needs_changes_nothing():
    f = ask()
    row = f.input("again")
    f.group("g", "row.k", row["q"], row=row)
    for passes in (flow.Passes(), flow.Passes(prune=False)):
        world = run(f.compile(passes), [{"q": "x", "k": 1}])
        assert world.table()["written"] == {(0, 0): {"answer": "re: x"}}


def test_a_filter_drops_rows_and_what_follows_is_not_computed():
    f = flow.Flow("f")
    row = f.input("row")
    kept = f.filter("kept", row["q"], "row.n > 1", row=row)
    f.output("text", f.llm("ask", "{{ q }}", q=kept))
    world = run(f.compile(), [{"q": f"{n}", "n": n} for n in range(4)])
    assert sorted(world.table()["written"]) == [(0, 2), (0, 3)]
    assert world.table()["dropped"] == {(0, 0), (0, 1)}
    assert len(world.issued) == 2


def test_a_result_of_an_earlier_session_counts_where_its_signature_is_the_same():
    executor = Executor(ask().compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    executor.start()
    (call,) = executor.handle(RowRead(0, {"q": "x"}))
    again = Executor(ask().compile(flow.Passes(cached=False)), FlowLimits(capacity=1))
    again.start()
    known = {"ask": Known(call.signature, "kept")}
    assert again.handle(RowRead(0, {"q": "x"}, known))[0] == WriteRow(0, 0, {"answer": "kept"})
    assert isinstance(again.handle(RowRead(1, {"q": "y"}, known))[0], IssueCall)


def test_calls_differ_by_all_that_an_engine_is_told():
    signatures = set()
    ways = [{}, {"max_tokens": 3}, {"model": "m"}, {"seed": 1}, {"top_p": 0.5}, {"stop": ["x"]},
            {"system": "s"}, {"temperature": 1.0}]  # fmt: skip
    for way in ways:
        for revision in ("", "2"):
            plan = ask(**way).compile(flow.Passes(cached=False), revision=revision)
            executor = Executor(plan, FlowLimits(capacity=1))
            executor.start()
            signatures.add(executor.handle(RowRead(0, {"q": "x"}))[0].signature)
    assert len(signatures) == 16


def test_limits_are_at_least_one():
    for name in ("capacity", "functions", "max_open_rows", "max_calls"):
        with pytest.raises(SetupError, match=f"{name} of a run is 0"):
            FlowLimits(**{"capacity": 1, name: 0})


def test_functions_do_not_take_the_places_of_calls():
    f = ask()
    row = f.input("again")
    f.output("n", f.call("count", len, obj=row["q"]))
    limits = FlowLimits(capacity=1, functions=1)
    executor = Executor(f.compile(flow.Passes(cached=False)), limits)
    executor.start()
    commands = executor.handle(RowRead(0, {"q": "x"}))
    assert [type(e) for e in commands if not isinstance(e, ReadRows)] == [IssueCall, RunFunction]
    commands = executor.handle(RowRead(1, {"q": "y"}))
    assert [type(e) for e in commands if not isinstance(e, ReadRows)] == [IssueCall]
