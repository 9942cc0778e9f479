"""The order that a run keeps: rows that are read together, open at once, and held back."""

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder, CallTurn
from kairos.workflows.execute.commands import ReadRows
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, InputEnded, RowRead, RowsAwaited
from kairos.workflows.execute.windows import RowIntake

TURNS = {"a": CallTurn(0, 0), "b": CallTurn(1, 0)}


def two_steps():
    f = flow.Flow("f", max_tokens=8)
    row = f.input("row")
    a = f.llm("a", "{{ row.x }}", row=row)
    f.output("b", f.llm("b", "so: {{ a }}", a=a))
    return f.compile(flow.Passes(cached=False, prefill=False, touch=False))


def rows(executor, count):
    return [c for n in range(count) for c in executor.handle(RowRead(n, {"x": f"x{n}"}, {}, 8))]


def issued(commands):
    return [(each.operator, each.row) for each in commands if isinstance(each, IssueCall)]


def read(commands):
    return sum(each.count for each in commands if isinstance(each, ReadRows))


def test_of_rows_together_one_sequence_goes_after_the_other_before_later_rows():
    executor = Executor(two_steps(), FlowLimits(capacity=1, at_once=1))
    executor.set_order(CallOrder("", TURNS, together=3))
    assert read(executor.start()) == 3

    made = [command for command in rows(executor, 6) if isinstance(command, IssueCall)]
    order = []
    while made:
        command = made.pop(0)
        order.append((command.operator, command.row))
        made += [
            each
            for each in executor.handle(CallAnswered(command.call, f"{command.row}", 3, 3))
            if isinstance(each, IssueCall)
        ]
    first, later = order[:6], order[6:]
    assert first == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert [row for _, row in later] == [3, 4, 5, 3, 4, 5]


def test_rows_are_asked_for_in_whole_batches_and_the_rest_of_one_that_was_begun():
    intake = RowIntake(FlowLimits(capacity=1))
    intake.set_order(CallOrder("", {}, together=4))
    assert intake.rows_to_ask(1) == 4
    intake.asked = 4
    intake.open_row(8)
    assert intake.rows_to_ask(0) == 0
    intake.asked = 1  # some are not to be had now
    assert intake.rows_to_ask(0) == 2
    assert intake.rows_to_ask(5) == 6
    intake.end_input()
    assert intake.rows_to_ask(9) == 0


def test_no_more_rows_are_open_than_the_order_has_and_first_ones_wait():
    plan = two_steps()
    executor = Executor(plan, FlowLimits(capacity=4, kv_tokens=100_000))
    executor.start()
    assert issued(rows(executor, 11)) == []  # twelve were asked for: the order is not known yet
    executor.set_order(CallOrder("", {}, open_rows=2))
    assert executor.figures.open == 0

    executor = Executor(plan, FlowLimits(capacity=4, kv_tokens=100_000))
    executor.start()
    commands = rows(executor, 12)
    assert [row for _, row in issued(commands)] == [*range(8)]


def test_rows_that_come_slowly_are_not_waited_for_nor_those_of_a_table_that_ends():
    for fact in (RowsAwaited(), InputEnded()):
        executor = Executor(two_steps(), FlowLimits(capacity=4, kv_tokens=100_000))
        executor.start()
        assert issued(rows(executor, 2)) == []
        assert issued(executor.handle(fact)) == [("a", 0), ("a", 1)]
    executor = Executor(two_steps(), FlowLimits(capacity=4, kv_tokens=100_000))
    executor.start()
    executor.handle(RowsAwaited())
    assert issued(rows(executor, 1)) == [("a", 0)]


def test_without_the_pass_or_a_memory_rows_begin_at_once_as_declared():
    for limits in (FlowLimits(capacity=4), FlowLimits(capacity=4, max_open_rows=1)):
        executor = Executor(two_steps(), limits)
        executor.start()
        assert issued(rows(executor, 1)) == [("a", 0)]
    assert AS_DECLARED.key("b", 7) == (0, 0, 7, 0)
