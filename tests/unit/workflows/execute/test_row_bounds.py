"""A flow of anyone's making takes no more than its row may."""

import pytest

from kairos.workflows import FlowLimits, IssueCall, Passes
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.declare.yaml_file import read_yaml
from kairos.workflows.execute.commands import FailRow, WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, InputEnded, ItemsFinished, RowRead
from tests.support.flow_tables import WIDE

NESTED = """
flow: nested
operators:
  row: {kind: input}
  all:
    kind: loop
    start: row.x
    max_rounds: 100
    result: deep
    body:
      deep:
        kind: loop
        start: state
        max_rounds: 100
        result: same
        body:
          same: {kind: format, template: "{{ state }}"}
outputs: {all: all}
"""
DOUBLED = """
flow: doubled
operators:
  row: {kind: input}
  all:
    kind: loop
    start: row.x
    max_rounds: 20
    result: twice
    body:
      twice: {kind: format, template: "{{ state }}{{ state }}"}
outputs: {all: all}
"""
LISTED = """
flow: listed
operators:
  row: {kind: input}
  two: {kind: data, value: ["a", "b"]}
  all:
    kind: loop
    start: row.x
    max_rounds: 100
    result: twice
    body:
      twice:
        kind: map
        over: two
        result: same
        body:
          same: {kind: branch, on: item, cases: {a: state, b: state}}
outputs: {all: all}
"""


def ended(text, row, is_spent=lambda: False, **limits):
    executor = Executor(compile_plan(read_yaml(text)), FlowLimits(capacity=1, **limits), is_spent)
    executor.start()
    commands = [*executor.handle(RowRead(0, row)), *executor.handle(InputEnded())]
    [end] = [each for each in commands if isinstance(each, FailRow | WriteRow)]
    return end


@pytest.mark.parametrize(
    ("text", "row"), [(NESTED, {"x": "y"}), (WIDE, {"xs": list(range(2_000))})]
)
def test_a_row_of_too_many_steps_fails(text, row):
    end = ended(text, row, row_steps=20_000)
    assert end.error == "the row takes more than 20000 steps"


def test_a_row_that_has_computed_for_its_time_fails_at_its_next_step():
    asked = iter([False] * 50)
    end = ended(NESTED, {"x": "y"}, lambda: next(asked, True), row_steps=1_000_000)
    assert end.error == "the row computes for too long: its templates loop too much"
    assert next(asked, None) is None


def test_a_row_whose_texts_grow_too_large_fails():
    end = ended(DOUBLED, {"x": "y"}, row_bytes=10_000)
    assert end.error == "the row's values have more than 10000 characters"
    assert end.node.startswith("all.")


def test_a_list_that_has_another_twice_is_as_large_as_it_would_be_written():
    end = ended(LISTED, {"x": "y"}, row_steps=100_000, row_bytes=1 << 20)
    assert end.error == "the row's values have more than 1048576 characters"


def test_a_list_of_many_references_counts_before_an_operator_has_it():
    text = """
flow: many
operators:
  row: {kind: input}
  all: {kind: format, template: "{{ xs | length }}", inputs: {xs: [row.x, row.x, row.x, row.x]}}
outputs: {all: all}
"""
    end = ended(text, {"x": "y" * 1_000}, row_bytes=4_500)
    assert end.error == "the row's values have more than 4500 characters"


def test_objects_in_lists_count_with_their_keys():
    text = "flow: f\noperators: {row: {kind: input}}\noutputs: {all: row}"
    row = {"x": [{"text": "y" * 1_000}] * 10}
    end = ended(text, row, row_bytes=5_000)
    assert end.error == "the row's values have more than 5000 characters"
    assert isinstance(ended(text, row, row_bytes=50_000), WriteRow)


def test_within_its_bounds_a_row_is_as_without():
    rows = [(NESTED, {"x": "y"}), (DOUBLED, {"x": "y"}), (WIDE, {"xs": [1, 2]})]
    for text, row in rows:
        bounded = ended(text, row, row_steps=1_000_000, row_bytes=10_000_000)
        assert bounded == ended(text, row)
        assert isinstance(bounded, WriteRow)


def test_what_is_tried_ahead_counts_as_the_row_itself():
    text = """
flow: ahead
operators:
  row: {kind: input}
  more:
    kind: llm
    prompt: "{{ row.q }}"
    schema: {type: object, properties: {q: {type: array}}, required: [q]}
  all:
    kind: map
    over: more.q
    result: inner
    body:
      inner:
        kind: map
        over: row.xs
        result: same
        body:
          same: {kind: format, template: "{{ item }}"}
outputs: {all: all}
"""
    plan = compile_plan(read_yaml(text), Passes(cached=False))
    executor = Executor(plan, FlowLimits(capacity=1, row_steps=500))
    executor.start()
    commands = executor.handle(RowRead(0, {"q": "?", "xs": list(range(900))}))
    [call] = [each.call for each in commands if isinstance(each, IssueCall)]
    executor.handle(ItemsFinished(call, 0, ["a"]))
    commands = executor.handle(CallAnswered(call, '{"q": []}'))
    assert any(isinstance(each, FailRow) for each in commands)
