"""Whether what goes wrong with a batch would be seen."""

from types import SimpleNamespace

import pytest

from kairos.events import Finished, FirstToken, Record
from tests.acceptance.batch_verdict import Line, expected, in_vain, of_batch, of_output

LINES = [Line("a", "one"), Line("b", "two"), Line("c", "three")]


def answered(name, said, used=None):
    body = {"id": used or name, "choices": [{"message": {"content": said}}]}
    return {"custom_id": name, "error": None, "response": {"body": body}}


A, B, C = answered("a", "one"), answered("b", "two"), answered("c", "three")


@pytest.mark.parametrize(
    ("output", "wrong"),
    [
        ([A, B, C], []),
        ([A, C], ["1 are lost: b"]),
        ([A, B, B, C], ["1 are there twice: b", "1 answers are used twice: b"]),
        (
            [A, B, C, answered("d", "?")],
            ["1 were never asked: d", "1 have another answer than their own: d"],
        ),
        ([A, answered("b", "three"), C], ["1 have another answer than their own: b"]),
        ([A, answered("b", "two", used="a"), C], ["1 answers are used twice: a"]),
        (
            [A, B | {"error": {"code": "x"}, "response": None}, C],
            ["1 have another answer than their own: b"],
        ),
        ([A, C, B], ["the output is not in the order of the input"]),
    ],
)
def test_lines_that_are_lost_twice_wrong_or_out_of_order_are_named(output, wrong):
    assert [*of_output(LINES, output)] == wrong


@pytest.mark.parametrize(
    ("status", "counts", "errors", "is_wrong"),
    [
        ("completed", (3, 3, 0), None, False),
        ("expired", (3, 3, 0), None, True),
        ("completed", (3, 2, 1), None, True),
        ("completed", (3, 3, 0), "file-1", True),
    ],
)
def test_a_batch_that_did_not_complete_all_its_lines_is_told(status, counts, errors, is_wrong):
    total, completed, failed = counts
    counted = SimpleNamespace(total=total, completed=completed, failed=failed)
    batch = SimpleNamespace(status=status, request_counts=counted, error_file_id=errors)
    assert bool([*of_batch(batch, 3)]) == is_wrong


def test_what_was_answered_again_was_answered_in_vain_the_first_time():
    names = ("batch_1/1", "batch_1/2", "batch_1/1", "batch_2/1", "batch_2/1")
    records = [Record(0, Finished(name, 1, 1)) for name in names]
    assert in_vain([*records, Record(0, FirstToken("batch_1/2"))], "batch_1") == 1


def test_what_is_expected_is_a_function_of_the_question_and_the_seed():
    body = {"model": "standin", "messages": [{"role": "user", "content": "1"}], "max_tokens": 8}
    other = body | {"messages": [{"role": "user", "content": "2"}]}
    assert expected("a", body, 1) == expected("a", body, 1)
    assert expected("a", body, 1).answer != expected("a", other, 1).answer
    assert expected("a", body, 1).answer != expected("a", body, 2).answer
