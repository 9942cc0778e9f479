"""E9, as far as it is decided without an engine: what is touched, and when."""

import pytest

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, TouchPrefix
from kairos.workflows.compile.passes.static_prefixes import LEAST_TOKENS, static_prefixes
from kairos.workflows.execute.commands import EndRun, FetchCached, ReadRows
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    EnginesIdle,
    InputEnded,
    Known,
    OperatorsOpened,
    RowRead,
    RowsAwaited,
    StopAsked,
)

LONG, LONGER = "You judge. " * 40, "You judge. " * 60


def judging(*, cached=False, **how):
    """A flow whose two operators begin with what all rows have."""
    f = flow.Flow("judging", max_tokens=9)
    row = f.input("row")
    first = f.llm("first", "{{ row.q }}", system=LONG, row=row)
    f.output("verdict", f.llm("second", LONGER + " {{ v }}", v=first))
    return f.compile(flow.Passes(cached=cached, **how))


def touched(commands):
    return [each.operator for each in commands if isinstance(each, TouchPrefix)]


def one_row(executor, row, tokens):
    """All facts of a row, whose calls write so many tokens each; what followed from the last."""
    commands = executor.handle(RowRead(row, {"q": f"q{row}"}))
    while issued := [each for each in commands if isinstance(each, IssueCall)]:
        commands = executor.handle(RowsAwaited())  # which come while the row is open
        assert not touched(commands)
        commands = executor.handle(CallAnswered(issued[0].call, f"good {row}", tokens, 0))
    return commands


def test_what_prompts_begin_with_for_every_row_is_computed_while_rows_are_awaited():
    executor = Executor(judging(), FlowLimits(capacity=1))
    assert executor.start() == [ReadRows(3)]
    first, second = executor.handle(RowsAwaited())
    assert (first.operator, first.model) == ("first", None)
    assert first.body == {
        "messages": [{"role": "system", "content": LONG}],
        "temperature": 0.0,
        "max_tokens": 1,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    assert second.body["messages"] == [{"role": "user", "content": LONGER + " "}]
    assert executor.handle(RowsAwaited()) == []  # they have just been
    assert executor.figures.touched == 2


def test_before_a_later_batch_those_are_touched_that_half_of_the_memory_was_written_after():
    executor = Executor(judging(), FlowLimits(capacity=1, kv_tokens=1_000))
    executor.start()
    executor.handle(RowsAwaited())
    # After a row the second operator's beginning is what was used last, the first's a call ago.
    assert touched(one_row(executor, 0, 400)) == []
    assert touched(one_row(executor, 1, 499)) == []
    assert touched(one_row(executor, 2, 500)) == ["first"]


def test_in_a_pause_beginnings_are_computed_that_no_call_has_used():
    executor = Executor(judging(), FlowLimits(capacity=1))
    executor.start()
    assert touched(executor.handle(EnginesIdle())) == ["first", "second"]
    assert executor.handle(EnginesIdle()) == []  # they have just been


def calls_of(commands):
    return [each.call for each in commands if isinstance(each, IssueCall | FetchCached)]


@pytest.mark.parametrize("how", ["resumed", "cached"])
def test_in_a_pause_none_is_computed_whose_calls_an_earlier_run_may_have_made(how):
    before = Executor(judging(), FlowLimits(capacity=1))
    before.start()
    (issued,) = before.handle(RowRead(0, {"q": "q"}))
    known = {"first": Known(issued.signature, "good")}
    executor = Executor(judging(cached=how == "cached"), FlowLimits(capacity=1))
    executor.start()
    made = executor.handle(RowRead(0, {"q": "q"}, known if how == "resumed" else {}))
    if how == "cached":
        made = executor.handle(CacheAnswered(*calls_of(made), True, "good"))
        made = executor.handle(CacheAnswered(*calls_of(made), False))
    executor.handle(CallAnswered(*calls_of(made), "so", 9, 9))
    assert touched(executor.handle(EnginesIdle())) == []


def test_rows_that_are_there_at_once_are_not_waited_for():
    executor = Executor(judging(), FlowLimits(capacity=1))
    executor.start()
    (call,) = executor.handle(RowRead(0, {"q": "q"}))
    (_, call) = executor.handle(CallAnswered(call.call, "good", 10**6, 0))
    executor.handle(CallAnswered(call.call, "good", 10**6, 0))
    assert executor.handle(InputEnded()) == [EndRun("done")]
    assert executor.figures.touched == 0


def test_nothing_is_touched_with_a_budget_without_the_pass_or_once_it_stops():
    for plan, limits in (
        (judging(), FlowLimits(capacity=1, max_calls=9)),
        (judging(), FlowLimits(capacity=1, max_tokens=9_999)),
        (judging(touch=False), FlowLimits(capacity=1)),
    ):
        executor = Executor(plan, limits)
        executor.start()
        assert executor.handle(RowsAwaited()) == []
    executor = Executor(judging(), FlowLimits(capacity=1))
    executor.start()
    executor.handle(StopAsked())
    assert touched(executor.handle(RowsAwaited())) == []


def test_engines_that_switch_models_are_not_touched():
    executor = Executor(judging(), FlowLimits(capacity=1))
    executor.start()
    executor.handle(OperatorsOpened(frozenset({"first"})))
    assert touched(executor.handle(RowsAwaited())) == []
    assert touched(executor.handle(OperatorsOpened(None))) == ["first", "second"]


def test_of_two_beginnings_of_which_one_begins_the_other_the_longer_stands_for_both():
    f = flow.Flow("roles")
    row = f.input("row")
    talk = [("system", LONG), ("user", "Answer. {{ row.q }}")]
    for name, messages in (
        ("short", [("system", LONG[:300]), ("user", "{{ row.q }}")]),
        ("long", talk),
        ("same", talk),
        ("other", [("user", LONG + "{{ row.q }}")]),
        ("tiny", [("system", "Be brief."), ("user", "{{ row.q }}")]),
    ):
        f.output(name, f.llm(name, messages, row=row, temperature=1.0))
    f.output("constant", f.llm("constant", LONGER + "!"))
    f.output("elsewhere", f.llm("elsewhere", talk, row=row, model="large"))
    found = static_prefixes(f.compile().declaration.operators)
    assert [(each.operators, each.model, each.messages) for each in found] == [
        (("short", "long", "same"), None, (("system", LONG), ("user", "Answer. "))),
        (("other",), None, (("user", LONG),)),
        (("elsewhere",), "large", (("system", LONG), ("user", "Answer. "))),
    ]
    assert all(each.tokens >= LEAST_TOKENS for each in found)
