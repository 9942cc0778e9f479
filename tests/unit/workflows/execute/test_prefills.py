"""Row A4 of the design: prompts begin while their rest is found out."""

import msgspec
import pytest

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, RunProcessor, TouchPrefix
from kairos.workflows.compile.costs.latency import TYPICAL_LATENCIES
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.execute.commands import FetchCached
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    InputEnded,
    Known,
    RowRead,
    RowsAwaited,
)
from tests.support.simulate.standin import processed

SYSTEM = "You answer a question from passages, in a few words. " * 10


def retrieval(**how):
    f = flow.Flow("retrieval", max_tokens=20)
    row = f.input("row")
    found = f.search("found", f.embed("asked", row["q"]), collection="docs")
    prompt = "Question: {{ row.q }}\n\nPassages: {% for p in found %}{{ p.text }}{% endfor %} Now:"
    answer = f.llm("answer", prompt, system=SYSTEM, row=row, found=found, **how)
    f.output("answer", answer)
    return f


class Row:
    """One row of an executor: what is asked for it, in order."""

    def __init__(self, plan, known=None, **limits):
        self.executor = Executor(plan, FlowLimits(**{"capacity": 4} | limits))
        self.executor.start()
        self.asked = []
        self.do(RowRead(0, {"q": "why so"}, known or {}))
        self.do(InputEnded())

    def do(self, fact):
        sorts = IssueCall | RunProcessor | TouchPrefix | FetchCached
        made = [each for each in self.executor.handle(fact) if isinstance(each, sorts)]
        self.asked += made
        return made

    def process(self):
        """Processors answer, until they have nothing more to do."""
        waiting = [each for each in self.asked if isinstance(each, RunProcessor)]
        while waiting:
            each = waiting.pop(0)
            value = processed(each.kind, each.arguments)
            waiting += [
                made
                for made in self.do(CallAnswered(each.call, value))
                if isinstance(made, RunProcessor)
            ]

    def of(self, sort):
        return [each for each in self.asked if isinstance(each, sort)]


UNCACHED = flow.Passes(cached=False)


def test_a4_what_is_known_goes_ahead_before_the_context_and_the_whole_call_is_as_it_was():
    row = Row(retrieval().compile(UNCACHED))
    # At once, while the question is embedded.
    assert {type(each) for each in row.asked} == {RunProcessor, TouchPrefix}
    (touch,) = row.of(TouchPrefix)
    assert touch.body["messages"] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Question: why so\n\nPassages: "},
    ]
    assert touch.body["max_tokens"] == 1
    assert touch.body["continue_final_message"] is True
    row.process()
    (call,) = row.of(IssueCall)
    assert len(row.of(TouchPrefix)) == 1
    whole = call.body["messages"]
    assert whole[0] == touch.body["messages"][0]
    assert whole[1]["content"].startswith(touch.body["messages"][1]["content"])
    without = Row(retrieval().compile(flow.Passes(cached=False, prefill=False)))
    without.process()
    assert without.of(TouchPrefix) == []
    assert msgspec.json.encode(without.of(IssueCall)[0].body) == msgspec.json.encode(call.body)
    # What goes ahead is no call of the row: nothing waits for it, and it has no result.
    assert row.executor.figures.touched == 1
    assert row.executor.figures.calls == 1


def test_a4_of_a_refined_answer_each_next_prompt_begins_while_the_one_before_is_answered():
    f = flow.Flow("refine", max_tokens=30)
    row = f.input("row")
    first = f.llm("first", "{{ q }}", system=SYSTEM, q=row["q"])
    second = f.llm("second", "{{ q }}, so far: {{ a }}", system=SYSTEM, q=row["q"], a=first)
    f.output("text", second)
    (part,) = f.compile().prefills
    assert (part.operator, part.beside) == ("second", {"first"})
    row = Row(f.compile(UNCACHED))
    # What is needed now goes first: an engine of its own is left for what goes ahead.
    assert [type(each) for each in row.asked] == [IssueCall, TouchPrefix]


def test_a4_it_is_done_only_where_a_saving_is_predicted():
    def parts(**costs):
        latencies = msgspec.structs.replace(TYPICAL_LATENCIES, **costs)
        return [
            each.operator
            for each in compile_plan(retrieval().declaration, latencies=latencies).prefills
        ]

    assert parts() == ["answer"]
    # Calls cost more than the beginning; it would not be there before the rest; nothing is waited
    # for.
    assert parts(call_us=1_000_000) == []
    assert parts(prefill_token_us=10_000) == []
    assert parts(processor_us=0) == []
    f = flow.Flow("f")
    row = f.input("row")
    f.output("a", f.llm("a", "{{ q }} {{ p }}", system=SYSTEM, q=row["q"], p=row["p"]))
    assert f.compile().prefills == ()


def test_a4_what_might_not_be_computed_is_not_begun():
    f = flow.Flow("f", max_tokens=30)
    row = f.input("row")
    first = f.llm("first", "{{ q }}", q=row["q"])
    seldom = f.llm("seldom", "{{ q }} {{ a }}", system=SYSTEM, q=row["q"], a=first)
    f.output("text", f.branch("which", "a", {"no": seldom}, otherwise=first, a=first))
    assert f.compile().prefills == ()

    f = flow.Flow("f", max_tokens=30)
    row = f.input("row")
    other = f.llm("other", "{{ q }}", q=row["q"])
    items = f.llm("items", "{{ q }}", q=row["q"], schema={"type": "array"})

    def body(item):
        return f.llm("each", "{{ o }} {{ i }}", system=SYSTEM, o=other, i=item)

    # `other` is needed only if there are items: the beginning ends before it.
    f.output("all", f.map("all", items, body))
    (part,) = f.compile().prefills
    assert (part.operator, part.whole, part.inputs) == ("each", 1, {})


@pytest.mark.parametrize("limits", [{"max_calls": 5}, {"max_tokens": 10_000}])
def test_a4_a_budget_is_for_what_is_asked(limits):
    assert Row(retrieval().compile(UNCACHED), **limits).of(TouchPrefix) == []


def refined(**passes):
    f = flow.Flow("refine", max_tokens=30)
    row = f.input("row")
    first = f.llm("first", "{{ q }}", system=SYSTEM, q=row["q"])
    f.output("text", f.llm("second", "{{ a }}", system=SYSTEM, a=first))
    return f.compile(flow.Passes(**passes))


def test_a4_nothing_goes_ahead_where_engines_have_no_room_for_another_call_beside_each():
    assert len(Row(refined(cached=False), capacity=2).of(TouchPrefix)) == 1
    assert Row(refined(cached=False), capacity=1).of(TouchPrefix) == []


@pytest.mark.parametrize(
    ("capacity", "count", "touched"), [(4, 2, 2), (4, 3, 0), (4, 20, 0), (500, 4, 4), (500, 5, 0)]
)
def test_a4_what_goes_ahead_waits_for_rows_to_come_and_of_many_nothing_does(
    capacity, count, touched
):
    executor = Executor(refined(cached=False), FlowLimits(capacity=capacity))
    executor.start()
    for number in range(count):
        executor.handle(RowRead(number, {"q": f"why {number}"}, {}))
        assert executor.figures.touched == 0
    executor.handle(InputEnded())
    assert executor.figures.touched == touched


def test_a4_so_do_calls_whose_results_are_still_looked_up():
    executor = Executor(refined(), FlowLimits(capacity=4))
    executor.start()
    made = [each for n in range(3) for each in executor.handle(RowRead(n, {"q": f"why {n}"}, {}))]
    fetches = [each for each in made if isinstance(each, FetchCached)]
    executor.handle(InputEnded())
    for fetch in fetches:
        executor.handle(CacheAnswered(fetch.call, False))
        assert executor.figures.touched == 0
    assert executor.figures.calls == 3


def test_a4_of_a_table_that_is_slow_the_rows_to_come_are_not_waited_for():
    executor = Executor(refined(cached=False), FlowLimits(capacity=4))
    executor.start()
    executor.handle(RowRead(0, {"q": "why"}, {}))
    (touch,) = executor.handle(RowsAwaited())
    assert isinstance(touch, TouchPrefix)


def test_a4_nothing_goes_ahead_of_a_whole_prompt_that_went_meanwhile():
    executor = Executor(refined(cached=False), FlowLimits(capacity=4))
    executor.start()
    made = executor.handle(RowRead(0, {"q": "why"}, {}))
    (first,) = (each for each in made if isinstance(each, IssueCall))
    made = executor.handle(CallAnswered(first.call, "so"))
    assert [each.operator for each in made if isinstance(each, IssueCall)] == ["second"]
    assert executor.handle(RowsAwaited()) == []


def test_a4_nothing_goes_ahead_of_what_is_known_from_earlier():
    plan = retrieval().compile()
    row = Row(plan)
    row.process()
    fetch = row.of(FetchCached)[-1]
    known = {"answer": Known(fetch.signature, "so")}
    assert Row(plan, known).of(TouchPrefix) == []

    # Whatever is fetched is not waited for.
    f = flow.Flow("refine", max_tokens=30)
    given = f.input("row")
    first = f.llm("first", "{{ q }}", system=SYSTEM, q=given["q"])
    f.output("text", f.llm("second", "{{ a }}", system=SYSTEM, a=first))
    row = Row(f.compile())
    (fetch,) = row.asked
    made = row.do(CacheAnswered(fetch.call, True, "why"))
    assert [type(each) for each in made] == [FetchCached]


PASSAGES = [f"Passage {n}. " + "It says more. " * 20 for n in range(4)]


REFINE = "Question: {{ q }} Passage: {{ ps[n] }} So far: {{ draft }}"


def looped(rounds=3, prompt=REFINE, *, asks=True):
    """Refine an answer by one passage after the other, as Figure 6 of Teola does."""
    f = flow.Flow("refine", max_tokens=30)
    row = f.input("row")

    def body(state, number):
        known = {"q": row["q"], "ps": row["ps"], "n": number}
        return f.llm("better", prompt, system=SYSTEM, **known, draft=state)

    first = f.llm("first", "{{ q }}", q=row["q"]) if asks else row["q"]
    f.output("text", f.loop("refine", first, body, max_rounds=rounds))
    return f.compile(UNCACHED)


def messages(each):
    return [(message["role"], message["content"]) for message in each.body["messages"]]


def drive(plan, given, **limits):
    """Answer each call as it is made. Return what was asked for, in order."""
    executor = Executor(plan, FlowLimits(**{"capacity": 4} | limits))
    made = [*executor.start(), *executor.handle(RowRead(0, given, {}))]
    made += executor.handle(InputEnded())
    asked = []
    while made:
        each = made.pop(0)
        if isinstance(each, IssueCall | TouchPrefix):
            asked.append(each)
        if isinstance(each, IssueCall):
            made += executor.handle(CallAnswered(each.call, f"answer {each.call}"))
    return asked


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_a4_in_a_loop_the_next_round_begins_while_the_one_before_is_answered(rounds):
    asked = drive(looped(rounds), {"q": "why so", "ps": PASSAGES})
    calls = [each for each in asked if isinstance(each, IssueCall)]
    # One ahead of each round: of the first one beside `first`.
    kinds = [type(each) for each in asked]
    assert kinds == [IssueCall, TouchPrefix] * rounds + [IssueCall]
    for touch, call in zip(asked[1::2], calls[1:], strict=True):
        ahead, whole = messages(touch), messages(call)
        assert ahead[0] == whole[0]
        assert whole[1][1].startswith(ahead[1][1])
        assert ahead[1][1].endswith("So far: ")


def test_a4_a_loop_that_begins_with_what_is_there_waits_for_nothing_in_its_first_round():
    asked = drive(looped(asks=False), {"q": "why so", "ps": PASSAGES})
    assert [type(each) for each in asked] == [IssueCall, TouchPrefix] * 2 + [IssueCall]


def test_a4_in_a_loop_what_the_state_comes_before_is_not_begun():
    plan = looped(prompt="{{ draft }} {{ ps[n] }} {{ q }}")
    (part,) = plan.prefills
    assert (part.operator, part.whole, part.segments) == ("better", 1, 0)


def test_a4_of_a_prompt_each_part_begins_when_it_is_known():
    f = flow.Flow("parts", max_tokens=30)
    row = f.input("row")
    found = f.llm("found", "{{ q }}", q=row["q"])
    draft = f.llm("draft", "{{ found }}", found=found)
    found_in = f" Found: {{{{ found }}}}. {SYSTEM}"
    prompt = "{% for p in ps %}{{ p }}{% endfor %}" + found_in + " Draft: {{ draft }}"
    last = f.llm("last", prompt, system=SYSTEM, ps=row["ps"], found=found, draft=draft)
    f.output("text", last)
    plan = f.compile(UNCACHED)
    assert [(part.operator, set(part.beside)) for part in plan.prefills] == [
        ("last", {"found"}),
        ("last", {"draft"}),
    ]
    asked = drive(plan, {"q": "why so", "ps": PASSAGES})
    assert [type(each) for each in asked] == [IssueCall, TouchPrefix] * 2 + [IssueCall]
    assert asked[1].body["messages"][1]["content"] == "".join(PASSAGES) + " Found: "
    assert asked[3].body["messages"][1]["content"].endswith(" Draft: ")


def test_a4_nothing_goes_ahead_to_engines_that_keep_nothing_of_a_prompt():
    given = {"q": "why so", "ps": PASSAGES}
    asked = drive(looped(), given, caches_prefixes=False)
    assert {type(each) for each in asked} == {IssueCall}
