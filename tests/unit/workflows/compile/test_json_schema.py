import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kairos.workflows.compile.json_answers import problem

VERDICT = {
    "type": "object",
    "properties": {
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
        "label": {"enum": ["good", "bad"]},
        "why": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 2},
    },
    "required": ["score"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"score": 3, "label": "good", "why": ["a"]}, None),
        ({"score": 3.0}, None),
        ([], "it is a list, not a object"),
        ({}, "it has no 'score'"),
        ({"score": True}, "score is a boolean, not a integer"),
        ({"score": 11}, "score is 11, against maximum 10"),
        ({"score": 1, "label": "ugly"}, "label is none of 'good', 'bad'"),
        ({"score": 1, "why": ["a", ""]}, "why[1] has 0 length, 1 at least"),
        ({"score": 1, "why": ["a", "b", "c"]}, "why has 3 items, 2 at most"),
        ({"score": 1, "more": 1}, "more may not be there"),
    ],
)
def test_what_does_not_keep_to_a_schema_is_named(value, said):
    assert problem(VERDICT, value) == said


def test_references_within_a_schema_are_followed():
    schema = {"$ref": "#/$defs/Tree", "$defs": {"Tree": {
        "type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}}}  # fmt: skip
    assert problem(schema, {"left": {"left": {}}}) is None
    assert problem(schema, {"left": {"left": 3}}) == "left.left is a number, not a object"


def test_true_is_not_one_however_deep():
    assert problem({"enum": [[0], {"a": 1}]}, [False]) is not None
    assert problem({"const": {"a": 1}}, {"a": True}) is not None
    assert problem({"const": {"a": [1]}}, {"a": [1.0]}) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        (
            {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]},
            json.loads("[" * 40 + "]" * 40),
        ),
        ({"items": {"enum": list(range(5_000))}}, [4_999] * 5_000),
    ],
)
def test_what_takes_too_much_to_hold_against_a_schema_is_wrong(schema, value, monkeypatch):
    monkeypatch.setattr("kairos.workflows.compile.json_answers._MOST_STEPS", 20_000)
    assert problem(schema, value) == "it takes more than 20000 steps to hold it against its schema"


def test_a_schema_that_refers_to_itself_alone_ends():
    assert "too deeply" in str(problem({"$ref": "#"}, 1))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
_TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
_PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "minProperties": st.integers(0, 2),
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    },
)
_SCHEMAS = st.recursive(
    _PLAIN | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=5,
)


@given(_SCHEMAS, _VALUES)
def test_it_says_what_the_reference_implementation_says(schema, value):
    # As they come over the wire: JSON has one kind of number with a fraction.
    schema, value = json.loads(json.dumps([schema, value]))
    assert (problem(schema, value) is None) == Draft202012Validator(schema).is_valid(value)
