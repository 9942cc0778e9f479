"""Search of what a row has itself."""

import pytest

from kairos.core import InvalidRequest
from kairos.workflows.retrieve.vectors import matrix_of, search, text_of

NORTH = text_of([0, 2])


def collection(**vectors):
    return {"texts": list(vectors), "vectors": list(vectors.values())}


def test_nothing_is_found_where_nothing_is():
    assert search([], [NORTH], 3) == []
    assert search([collection()], [NORTH], 3) == []
    assert search([collection(north=NORTH)], [], 3) == []


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (["no base64!"], "not base64"),
        (["AAA="], "2 bytes"),
        ([text_of([float("nan")])], "an infinite number or NaN"),
        ([text_of([float("inf")])], "an infinite number or NaN"),
        ([text_of([1]), text_of([1, 2])], "several models"),
    ],
)
def test_what_is_no_vector_is_refused(vectors, message):
    with pytest.raises(InvalidRequest, match=message):
        matrix_of(vectors)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(InvalidRequest, match=r"1 numbers, .* have 2: .* same model"):
        search([collection(north=NORTH)], [text_of([1])], 3)
