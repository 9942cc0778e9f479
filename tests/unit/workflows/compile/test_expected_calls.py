"""The calls that are expected of a plan for given rows."""

import pytest

from kairos.core import Interval
from kairos.workflows import Passes
from kairos.workflows.compile.expected_calls import expected_calls
from kairos.workflows.compile.flow_profile import OperatorProfile
from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.prompt_marks import PromptMarker
from kairos.workflows.declare.yaml_file import read_yaml

FLOW = """
flow: triage
operators:
  row: {kind: input}
  field: {kind: llm, prompt: "{{ row.text }}\\nField?", max_tokens: 4}
  notes:
    kind: map
    over: row.parts
    body: {note: {kind: llm, prompt: "Note {{ item }}", max_tokens: 5}}
    result: note
  long: {kind: llm, prompt: "Long {{ notes | join }}", max_tokens: 30}
  short: {kind: llm, prompt: "Short {{ row.text }}", max_tokens: 10}
  answer: {kind: branch, on: field, cases: {a: long}, otherwise: short}
outputs: {answer: answer}
"""


def profile(share=1.0, times=1.0, deciles=()):
    point = Interval(share, share, share)
    often = Interval(times, times, times)
    return OperatorProfile(
        structure="", calls=9, rows=point, times=often, completion_deciles=deciles
    )


def expected(rows, learnt=None, flow=FLOW, **passes):
    plan = compile_plan(read_yaml(flow), Passes(**passes))
    return expected_calls(plan, learnt or {}, rows)


def by_operator(found):
    return {name: found.operators.count(name) for name in dict.fromkeys(found.operators)}


def test_a_branch_decides_before_its_cases_begin_and_what_they_alone_need():
    plan = compile_plan(read_yaml(FLOW), Passes())
    found = gates(plan.declaration)
    assert found["field"] == ()
    assert found["long"] == found["short"] == found["notes"] == ("field",)


def test_known_lists_have_their_items_and_calls_wait_for_what_they_need():
    found = expected([{"text": "t", "parts": ["a", "b"]}])
    assert by_operator(found) == {"field": 1, "note": 2, "long": 1, "short": 1}
    calls = dict(zip(found.operators, found.calls, strict=True))
    notes = {at for at, name in enumerate(found.operators) if name == "note"}
    field = found.operators.index("field")
    assert set(calls["long"].after) >= notes | {field}
    assert calls["short"].after == (field,)


def test_equal_calls_are_one_unless_that_is_off():
    rows = [{"text": "t", "parts": []}, {"text": "t", "parts": []}]
    found = expected(rows)
    assert (by_operator(found)["short"], found.merged) == (1, 3)
    found = expected(rows, cse=False)
    assert (by_operator(found)["short"], found.merged) == (2, 0)


def test_shares_and_lengths_are_as_they_were_learnt_in_the_mean():
    rows = [{"text": f"text {n}", "parts": []} for n in range(400)]
    learnt = {"short": profile(share=0.25, deciles=tuple(range(0, 110, 10)))}
    found = expected(rows, learnt)
    assert by_operator(found)["short"] == pytest.approx(100, rel=0.2)
    lengths = [
        call.completion_tokens
        for name, call in zip(found.operators, found.calls, strict=True)
        if name == "short"
    ]
    assert sum(lengths) / len(lengths) == pytest.approx(50, rel=0.2)
    assert max(lengths) > 80


def test_loops_have_the_rounds_that_were_seen_and_prompts_that_grow():
    flow = """
flow: refine
operators:
  row: {kind: input}
  better:
    kind: loop
    start: row.text
    body: {critic: {kind: llm, prompt: "Better: {{ state }}", max_tokens: 40}}
    result: critic
    max_rounds: 9
outputs: {better: better}
"""
    found = expected([{"text": "x"}], {"critic": profile(times=3.0)}, flow)
    assert by_operator(found) == {"critic": 3}
    assert [call.after for call in found.calls] == [(), (0,), (1,)]
    first, second, third = (call.prompt_tokens for call in found.calls)
    assert second == pytest.approx(third)
    assert second - first == pytest.approx(40 - 1 / 4)  # an answer in place of "x"


def test_a_chat_that_goes_on_begins_with_what_was_asked_and_answered():
    flow = """
flow: chat
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "{{ row.text }}", max_tokens: 8}
  second:
    kind: llm
    messages:
      - {role: user, content: "{{ row.text }}"}
      - {role: assistant, content: "{{ first }}"}
      - {role: user, content: "Sure?"}
outputs: {second: second}
"""
    first, second = expected([{"text": "x" * 400}], flow=flow).calls
    names = [name for name, _ in second.prefixes]
    assert names[: len(first.prefixes) + 1] == [*(n for n, _ in first.prefixes), first.answered]


def alike(first, second):
    """The tokens of the first prompt up to where the second begins to differ."""
    known = {name for name, _ in second.prefixes}
    return max((tokens for name, tokens in first.prefixes if name in known), default=0.0)


def test_two_prompts_are_marked_alike_as_far_as_they_are_and_long_texts_further_apart():
    marker = PromptMarker()
    text = "".join(f"word {n} " for n in range(4_000))
    whole = marker.marks([("system", ("Be brief.",)), ("user", (text,))])
    assert marker.marks([("system", ("Be brief.",)), ("user", (text,))]) == whole
    assert len(whole.prefixes) < 50
    for size in (1, 70, 500, 3_000, 20_000):
        other = marker.marks([("system", ("Be brief.",)), ("user", (text[:size] + "?" * 9_000,))])
        common = 3 + 9 / 4 + 1 + 3 + size / 4
        least = common - 16 if size < 1_024 else 0.75 * common
        assert least <= alike(other, whole) <= common


def test_reckoning_ends_with_the_row_that_makes_enough_calls():
    rows = [{"text": f"text {n}", "parts": ["a"]} for n in range(9)]
    plan = compile_plan(read_yaml(FLOW), Passes())
    whole, some = expected_calls(plan, {}, rows), expected_calls(plan, {}, rows, 8)
    assert len(some.ends) == 3
    before = whole.before(3)
    assert (before.calls, before.operators, before.merged) == (
        some.calls,
        some.operators,
        some.merged,
    )
    assert whole.before(0).calls == []
