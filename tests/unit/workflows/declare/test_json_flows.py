"""Flows as JSON, which may come from anyone."""

import json

import pytest

from kairos.core import InvalidFile
from kairos.workflows.declare.yaml_file import read_json, read_yaml

YAML = """
flow: greet
operators:
  row: {kind: input}
  hello: {kind: llm, prompt: "Greet {{ row.name }}", max_tokens: 9}
outputs: {hello: hello}
"""
VALUE = {
    "flow": "greet",
    "operators": {
        "row": {"kind": "input"},
        "hello": {"kind": "llm", "prompt": "Greet {{ row.name }}", "max_tokens": 9},
    },
    "outputs": {"hello": "hello"},
}


def test_a_flow_says_the_same_as_yaml_and_as_json():
    assert read_json(json.dumps(VALUE), "greet") == read_yaml(YAML)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("3", "mapping of keys"),
        ("[" * 200 + "]" * 200, "nested over 100 deep"),
        ("[" * 100_000, "not JSON"),
        ("[" + "0," * 200_000 + "0]", "over 100000 values"),
        ('{"flow": "' + "x" * (1 << 20) + '"}', "longer than"),
        ('{"flow": "a", "operators": {"x": {"kind": "llm"}}, "outputs": {}}', "'x'"),
    ],
)
def test_what_is_no_flow_is_refused_with_what_is_wrong(text, says):
    with pytest.raises(InvalidFile, match=says):
        read_json(text, "greet")
