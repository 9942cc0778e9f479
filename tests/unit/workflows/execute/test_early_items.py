"""Row A5 of the design: items of a list go on while a model still writes it."""

import msgspec
import pytest

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, plan_lines
from kairos.workflows.compile.explain import explain_plan
from kairos.workflows.execute.commands import DropRow, FailRow, KeepResult, WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CallAnswered,
    CallBroke,
    InputEnded,
    ItemsFinished,
    RowRead,
)
from kairos.workflows.execute.frames import OpenRow
from kairos.workflows.execute.trials import EarlyWork

LIST = {"type": "object", "properties": {"q": {"type": "array"}}, "required": ["q"]}


def expansion(*, body=None, **how):
    """Questions that a model thinks of, each answered by another call."""
    f = flow.Flow("expansion")
    row = f.input("row")
    more = f.llm("more", "Ask more than {{ row.q }}", row=row, schema=LIST, retries=1, **how)
    each = body or (lambda item: f.llm("each", "{{ i }}", i=item, retries=1))
    f.output("found", f.map("all", more["q"], each))
    return f


class Session:
    """One row of an executor, call by call."""

    def __init__(self, plan):
        self.executor = Executor(plan, FlowLimits(capacity=8))
        self.executor.start()
        self.made, self.open, self.kept, self.end = [], [], [], None
        self.do(RowRead(0, {"q": "why"}))

    def do(self, fact):
        """The prompts of the calls that are made for it."""
        made = []
        for command in self.executor.handle(fact):
            match command:
                case IssueCall():
                    made.append(command)
                case KeepResult():
                    self.kept.append((command.node, command.value))
                case WriteRow() | FailRow() | DropRow():
                    self.end = command
        if isinstance(fact, CallAnswered | CallBroke):
            self.open = [each for each in self.open if each.call != fact.call]
        self.made += made
        self.open += made
        return [each.body["messages"][0]["content"] for each in made]

    def finish(self):
        """Whatever is under way is answered, until the row ends."""
        while self.open and self.end is None:
            first = self.open[0]
            self.do(CallAnswered(first.call, f"of {first.body['messages'][0]['content']}"))

    def call(self, prompt):
        return [e.call for e in self.made if e.body["messages"][0]["content"] == prompt][-1]


def begun(plan=None):
    return Session(plan or expansion().compile(flow.Passes(cached=False)))


def test_a5_item_1_is_dispatched_before_the_last_token_and_asked_once():
    session = begun()
    (more,) = session.made
    assert more.items.path == ("q",)
    assert session.do(ItemsFinished(1, 0, ["a"])) == ["a"]
    assert session.do(CallAnswered(session.call("a"), "of a")) == []
    assert session.do(ItemsFinished(1, 1, ["b"])) == ["b"]
    # `a` has its answer, `b` is under way, `c` is new.
    assert session.do(CallAnswered(1, '{"q": ["a", "b", "c"]}')) == ["c"]
    session.do(CallAnswered(session.call("c"), "of c"))
    session.do(CallAnswered(session.call("b"), "of b"))
    assert session.end.values == {"found": ["of a", "of b", "of c"]}
    nodes = [node for node, _ in session.kept]
    assert sorted(nodes) == ["all.0.each", "all.1.each", "all.2.each", "more"]


def test_a5_without_the_pass_nothing_begins_early():
    session = begun(expansion().compile(flow.Passes(cached=False, decoding=False)))
    assert session.made[0].items is None


@pytest.mark.parametrize("broken", ['{"q": ["a", "b"', "[]", "no list", '{"q": ["z"]}'])
@pytest.mark.parametrize("on_error", ["fail", "skip", "default"])
def test_a5_a_broken_list_gives_what_it_gives_without_the_pass(broken, on_error):
    f = expansion(on_error=on_error, default={"q": ["a", "x"]})
    ends = []
    for decoding in (True, False):
        session = begun(f.compile(flow.Passes(cached=False, decoding=decoding)))
        if decoding:
            assert session.do(ItemsFinished(1, 0, ["a", "b"])) == ["a", "b"]
        session.do(CallAnswered(1, broken))
        session.finish()
        ends.append(session.end)
    assert ends[0] is not None
    assert msgspec.json.encode(ends[0]) == msgspec.json.encode(ends[1])


def test_a5_what_fails_early_fails_its_row_only_if_it_is_needed():
    session = begun()
    session.do(ItemsFinished(1, 0, ["a", "b"]))
    session.do(CallBroke(session.call("a"), "refused", retry=False))
    assert session.end is None
    session.do(CallAnswered(1, '{"q": ["a", "b"]}'))
    assert (session.end.node, session.end.error) == ("all.0.each", "refused")
    session = begun()
    session.do(ItemsFinished(1, 0, ["a", "b"]))
    session.do(CallBroke(session.call("a"), "refused", retry=False))
    session.do(CallAnswered(session.call("b"), "of b"))
    # Another answer after all: what was begun for the wrong place counts nothing.
    assert session.do(CallAnswered(1, '{"q": ["b"]}')) == []
    assert session.end.values == {"found": ["of b"]}


def test_a5_a_list_that_is_written_again_begins_again():
    session = begun()
    session.do(ItemsFinished(1, 0, ["a", "b"]))
    session.do(CallBroke(1, "the connection broke", retry=True))
    assert session.made[-1].attempt == 2
    assert session.do(ItemsFinished(1, 0, ["x"])) == ["x"]
    assert session.do(ItemsFinished(1, 1, ["b"])) == []
    session.do(CallAnswered(1, '{"q": ["x", "b"]}'))
    session.do(CallAnswered(session.call("b"), "of b"))
    session.do(CallAnswered(session.call("a"), "of a"))
    session.do(CallAnswered(session.call("x"), "of x"))
    assert session.end.values == {"found": ["of x", "of b"]}
    session.do(InputEnded())


def test_a5_effects_are_never_tried_ahead_and_neither_is_what_may_not_be_needed():
    f = flow.Flow("f")
    row = f.input("row")
    more = f.llm("more", "{{ row.q }}", row=row, schema=LIST)
    other = f.llm("other", "{{ row.q }}!", row=row)

    def tells(item):
        return f.call("tell", print, purity="effect", value=item)

    def needs(item):
        return f.llm("needs", "{{ i }} {{ o }}", i=item, o=other)

    def all_of_it(item):
        return f.llm("of_it", "{{ i }} {{ m.q | length }}", i=item, m=more)

    def rows(item):
        return f.llm("rows", "{{ i }} {{ row.q }}", i=item, row=row)

    f.output("a", f.map("telling", more["q"], tells))
    f.output("b", f.map("needing", more["q"], needs))
    f.output("c", f.map("whole", more["q"], all_of_it))
    f.output("d", f.map("fine", more["q"], rows, max_items=7))
    (found,) = f.compile().partial
    assert found.maps == ("fine",)
    assert found.most == 7
    said = "streamed: more, whose items go to fine as they are finished"
    assert said in list(plan_lines(explain_plan(f.compile())))


def test_a5_a_row_that_joins_a_call_late_begins_with_all_that_there_is():
    f = flow.Flow("expansion")
    row = f.input("row")
    more = f.llm("more", "Ask more", schema=LIST)
    f.output(
        "found", f.map("all", more["q"], lambda i: f.llm("each", "{{ i }} {{ q.q }}", i=i, q=row))
    )
    session = begun(f.compile(flow.Passes(cached=False)))
    assert session.do(ItemsFinished(1, 0, ["a", "b"])) == ["a why", "b why"]
    assert session.do(RowRead(1, {"q": "who"})) == []
    made = session.do(ItemsFinished(1, 2, ["c"]))
    assert sorted(made) == ["a who", "b who", "c who", "c why"]


def test_a5_of_a_long_list_each_item_is_looked_at_once():
    looked = 0

    class Item:
        def __eq__(self, other):
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    row, work = OpenRow(0, 0, {}, {}, 0), EarlyWork()
    items = []
    for at in range(500):
        items.append(Item())
        assert [n for n, _ in work.begin_trials(row, "all", items, at, 1_000)] == [at]
    assert looked == 0
    assert work.begin_trials(row, "all", items, 0, 1_000) == []
    assert looked == 500
