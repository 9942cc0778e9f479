"""Check that of an invocation's body no more is made than its flow needs, however large it is."""

import json
import tracemalloc
from contextlib import suppress

import msgspec
import pytest

from kairos.core import InvalidRequest
from kairos.workflows.compile.columns import Columns
from kairos.workflows.serve.flow_models import read_flow_chat
from kairos.workflows.serve.invoke_body import (
    MOST_VALUES,
    SETTINGS_BYTES,
    THREAD_BYTES,
    read_invoke,
    row_of_inputs,
)

NEEDED = Columns(("prénom", "text"), whole=False)
WHOLE = Columns(("text",), whole=True)
PADDING = "x" * THREAD_BYTES


def row(inputs, table=NEEDED, **spelt):
    body = json.dumps({"inputs": inputs}, **spelt).encode()
    return row_of_inputs(read_invoke(body).inputs, table)


@pytest.mark.parametrize("padding", ["", PADDING])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(
    ("inputs", "made"),
    [
        ({"text": "a", "prénom": 5}, {"text": "a", "prénom": 5}),
        ({"text": {"a": [1, None]}, "prénom": "é\n"}, {"text": {"a": [1, None]}, "prénom": "é\n"}),
        ({"text": None, "prénom": [], "Text": 1, "": 2}, {"text": None, "prénom": []}),
    ],
)
def test_a_row_has_the_columns_that_the_flow_needs_alone(padding, ascii_only, inputs, made):
    assert row({"padding": padding} | inputs, ensure_ascii=ascii_only) == made


@pytest.mark.parametrize("padding", ["", PADDING])
@pytest.mark.parametrize("inputs", [{"text": "a"}, {}, {"prenom": 1, "text": 2}])
def test_a_column_that_is_missing_is_named(padding, inputs):
    with pytest.raises(InvalidRequest, match="the flow needs the column 'prénom'; inputs has"):
        row({"padding": padding} | inputs)


def test_a_flow_that_uses_the_whole_row_has_all_columns():
    assert row({"text": "a", "other": [1]}, WHOLE) == {"text": "a", "other": [1]}


MANY = b",".join([b"{}"] * (4 * MOST_VALUES))


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":{"text":"a","pr\xc3\xa9nom":"b","x":[' + MANY + b"]}}",
        b'{"inputs":{"text":[' + MANY + b'],"pr\xc3\xa9nom":"b"}}',
        b'{"inputs":{"text":"a","pr\\u00e9nom":[' + MANY + b"]}}",
        b'{"inputs":{"text":"a"},"settings":{"a":[' + MANY + b"]}}",
        b'{"inputs":[' + MANY + b"]}",
        b'{"inputs":{},"x":[' + MANY + b"]}",
        b'{"inputs":{},"inputs":{"x":[' + MANY + b"]}}",
        b'{"inputs":{' + b",".join([b'"a":1'] * MOST_VALUES) + b"}}",
    ],
)
@pytest.mark.parametrize("table", [NEEDED, WHOLE])
def test_little_is_made_of_a_large_body(body, table):
    tracemalloc.start()
    try:
        with suppress(InvalidRequest):
            asked = read_invoke(body)
            asked.settings_of()
            row_of_inputs(asked.inputs, table)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 6 * len(body)


@pytest.mark.parametrize("table", [NEEDED, WHOLE])
def test_the_values_of_a_row_are_bounded(table):
    few, many = [0] * (MOST_VALUES - 20), [0] * (MOST_VALUES + 20)

    assert row({"text": few, "prénom": 1}, table)["text"] == few
    with pytest.raises(InvalidRequest, match=f"at most {MOST_VALUES} are allowed: send long lists"):
        row({"text": many, "prénom": 1}, table)


def test_text_with_many_commas_is_one_value():
    text = ',[{"' * MOST_VALUES

    assert row({"text": text, "prénom": 1})["text"] == text


def test_settings_and_the_values_of_a_chat_are_bounded():
    long = read_invoke(json.dumps({"settings": {"a": "x" * SETTINGS_BYTES}}).encode())
    with pytest.raises(InvalidRequest, match="settings has 65545 bytes; at most 65536"):
        long.settings_of()
    with pytest.raises(InvalidRequest, match=r"messages has \d{7} values; at most 250000"):
        read_flow_chat(b'{"model":"flow/a","messages":[{"x":[' + MANY + b"]}]}")


def test_other_members_are_refused_in_a_large_body_too():
    for body in ({"inputs": {}, "x": PADDING}, {"x": 1, "inputs": {"a": PADDING}}, {"input": {}}):
        with pytest.raises(InvalidRequest, match="the body is not an invocation"):
            read_invoke(json.dumps(body).encode())
    assert isinstance(read_invoke(b"{}").inputs, msgspec.Raw)
