"""Lists that a model writes, embedded text by text, and texts that a function takes apart."""

from random import Random

import msgspec
import pytest

from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, RunFunction, RunProcessor
from kairos.workflows.compile.passes.decoding import partial_decodes
from kairos.workflows.execute.commands import WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, ItemsFinished, RowRead
from tests.support.simulate.standin import processed

TEXTS = {"type": "array", "items": {"type": "string"}}
LIST = {"type": "object", "properties": {"q": TEXTS}, "required": ["q"]}
ON, OFF = flow.Passes(cached=False), flow.Passes(cached=False, decoding=False)


def split(text):
    return [each for each in text.split("|") if each]


def a_flow(*, parsed, ingests=False, **how):
    f = flow.Flow("f")
    row = f.input("row")
    if parsed:
        more = f.llm("more", "ask {{ row.q }}", row=row)
        texts = f.call("parts", split, purity="pure", partial=True, text=more)
    else:
        texts = f.llm("more", "ask {{ row.q }}", row=row, schema=LIST)["q"]
    vectors = f.embed("vectors", texts, **how)
    f.output("vectors", vectors)
    if ingests:
        f.output("index", f.ingest("index_", texts, vectors))
    f.output("all", f.map("all", texts, lambda item: f.llm("each", "of {{ i }}", i=item)))
    return f


def value_of(command):
    match command:
        case IssueCall():
            return f"said {command.body['messages'][0]['content']}"
        case RunFunction():
            return split(**command.arguments)
    return processed(command.kind, command.arguments)


def outcome(plan, answer, told=()):
    """Return the row, and what was asked; `told`: lists of items, before the answer is whole."""
    executor = Executor(plan, FlowLimits(capacity=4))
    waiting, asked, end = [], [], []

    def do(commands):
        for command in commands:
            if isinstance(command, WriteRow):
                end.append(command.values)
            elif isinstance(command, IssueCall | RunFunction | RunProcessor):
                waiting.append(command)
                asked.append(command)

    executor.start()
    do(executor.handle(RowRead(0, {"q": "?"})))
    (more,) = waiting
    before = 0
    for items in told:
        do(executor.handle(ItemsFinished(more.call, 0, list(items))))
        before = max(before, len(asked) - 1)
    while waiting and not end:
        command = waiting.pop(0)
        value = answer if command is more else value_of(command)
        do(executor.handle(CallAnswered(command.call, value)))
    return end[0], asked, before


@pytest.mark.parametrize("parsed", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_told_of_an_answer_the_row_comes_to_the_same(seed, parsed):
    draw = Random(seed)
    words = ["a", "b", "c", "d"]
    items = [draw.choice(words) for _ in range(draw.randrange(0, 6))]
    answer = "|".join(items) if parsed else msgspec.json.encode({"q": items}).decode()
    told = []
    for _ in range(draw.randrange(0, 4)):  # some of them wrong, or too many
        right = items[: draw.randrange(0, len(items) + 1)]
        told.append(right if draw.random() < 0.7 else [*right, draw.choice(words), "x"])
    made = a_flow(parsed=parsed, ingests=draw.random() < 0.5)
    expected, naive, _ = outcome(made.compile(OFF), answer)
    found, asked, before = outcome(made.compile(ON), answer, told)
    assert found == expected
    if told and told[0]:
        assert before >= len({*told[0]}), "begun before the answer is whole"
    if all(items[: len(each)] == each for each in told):
        prompts = [str(e.body) for e in asked if isinstance(e, IssueCall)]
        assert len(prompts) == len({*prompts}) == 1 + len({*items}), "each is asked once"
    assert sum(isinstance(each, RunFunction) for each in naive) == parsed


def partial_of(made):
    return partial_decodes(made.compile(ON).declaration.operators)


def embedded(**how):
    f = flow.Flow("f")
    row = f.input("row")
    more = f.llm("more", "ask {{ row.q }}", row=row, **how.pop("llm", {"schema": LIST}))
    texts = more[how.pop("key", "q")] if how.pop("keyed", True) else more
    f.output("vectors", f.embed("vectors", texts, **how))
    return f


NO_TEXTS = {"type": "object", "properties": {"q": {"type": "array"}}, "required": ["q"]}
A_TEXT = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.mark.parametrize(
    ("made", "streams"),
    [
        (embedded, True),
        (lambda: embedded(batch=4), True),
        (lambda: embedded(model="m"), True),
        (lambda: embedded(on_error="skip"), False),
        (lambda: embedded(on_error="default", default=[]), False),
        (lambda: embedded(llm={"schema": NO_TEXTS}), False),  # items may be no texts
        (lambda: embedded(llm={"schema": A_TEXT}), False),
        (lambda: embedded(llm={}, keyed=False), False),
        (lambda: embedded(llm={"schema": TEXTS}, keyed=False), True),
        (lambda: a_flow(parsed=True), True),
        (lambda: a_flow(parsed=False), True),
    ],
)
def test_lists_of_texts_alone_are_embedded_as_they_are_written(made, streams):
    names = {name for each in partial_of(made()) for name in each.maps}
    assert ("vectors" in names) == streams


def test_a_function_that_is_not_declared_to_take_prefixes_is_not_called_with_any():
    f = flow.Flow("f")
    more = f.llm("more", "ask {{ row.q }}", row=f.input("row"))
    parts = f.call("parts", split, purity="pure", text=more)
    f.output("vectors", f.embed("vectors", parts))
    assert partial_of(f) == ()


def test_a_text_that_breaks_fails_the_row_as_the_flow_declares_it():
    (each,) = [e for e in embedded().compile(ON).declaration.operators if e.name == "vectors"]
    assert each.params.declared == {"vectors_item": "vectors"}
