"""JSON in answers as models give it."""

import time

import pytest

from kairos.flow import Flow
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.json_answers import read_answer
from kairos.workflows.declare.yaml_file import read_yaml

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WRAPPED = {
    "fence": '```json\n{"n": 7}\n```',
    "fence without a language": '```\n{"n": 7}\n```',
    "fence in prose": 'Here you are:\n```json\n{"n": 7}\n```\nAnything else?',
    "prose before": 'The answer is {"n": 7}',
    "prose around": 'Sure! {"n": 7} I hope that this helps {you}.',
    "thought": '<think>maybe {"n": 1}?</think>\n{"n": 7}',
    "thought without a beginning": 'maybe {"n": 1}?</think>{"n": 7}',
    "thought and fence": '<think>{"n": 1}</think>\n```json\n{"n": 7}\n```',
    "citation first": 'As [1] and [2, 3] say: {"n": 7}',
    "another object first": 'For {"m": 1} it is {"n": 7}',
    "broken one first": 'Not {"n": 7, but {"n": 7}',
    "fence of another kind first": '```python\nprint({})\n```\n```json\n{"n": 7}\n```',
    "fence that is not closed": '```json\n{"n": 7}',
    "blanks": ' \n{"n": 7}\n\n',
    "a byte order mark": '\ufeff{"n": 7}',
}


@pytest.mark.parametrize("name", WRAPPED)
def test_lenient_takes_json_out_of_what_models_put_around_it(name):
    text = WRAPPED[name]
    assert read_answer(text, SCHEMA, "lenient") == {"n": 7}
    if name == "blanks":
        assert read_answer(text, SCHEMA, "strict") == {"n": 7}
        return
    with pytest.raises(OperatorFailed, match="the answer is not JSON") as told:
        read_answer(text, SCHEMA, "strict")
    assert f"it begins: {text[:200]}" in str(told.value)
    assert "`parse: lenient`" in str(told.value)


BROKEN = {
    "nothing": ("", "is not JSON"),
    "prose": ("I cannot say.", "is not JSON"),
    "cut": ('{"n": 7', "is not JSON"),
    "cut in a fence": ('```json\n{"n": ', "is not JSON"),
    "another schema": ('{"m": 7}', "does not keep to its schema: it has no 'n'"),
    "another schema in prose": ('It is {"m": 7}.', "does not keep to its schema: it has no 'n'"),
    "not a number of JSON's": ('{"n": NaN}', "is not JSON"),
    "half of a surrogate pair": ('\ud83d {"m": 1}', "does not keep to its schema"),
    "deep": ("[" * 100_000, "is not JSON"),
    "deep in prose": ("x" + "[{" * 50_000, "is not JSON"),
    "many fences": ("```\n" * 50_000, "is not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_has_no_such_value_fails_and_shows_its_beginning(name):
    text, said = BROKEN[name]
    began = time.process_time()
    with pytest.raises(OperatorFailed) as told:
        read_answer(text, SCHEMA, "lenient")

    assert time.process_time() - began < 5
    assert said in str(told.value)
    assert f"it begins: {text[:200]}" in str(told.value)
    assert len(str(told.value)) < 500


def test_a_flow_in_yaml_and_one_in_python_say_the_same():
    made = Flow("t")
    row = made.input("row")
    made.output("a", made.llm("a", "{{ row.x }}", schema=SCHEMA, parse="lenient", row=row))
    read = read_yaml(
        "flow: t\noperators:\n  row: {kind: input}\n"
        "  a: {kind: llm, prompt: '{{ row.x }}', parse: lenient, schema: {type: object, "
        "properties: {n: {type: integer}}, required: [n]}}\noutputs: {a: a}\n"
    )

    assert made.declaration.operators[1].params == read.operators[1].params
    assert read.operators[1].params.parse == "lenient"
