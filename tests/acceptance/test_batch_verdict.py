"""Whether what goes wrong with a batch would be seen."""

from types import SimpleNamespace

import pytest

from tests.acceptance.batch_verdict import Line, of_batch, of_output

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
