"""Search of what a row has itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.errors import InvalidRequest
from kairos.live.processors import exact_search
from kairos.live.processors.exact_search import best_of, search
from kairos.live.processors.vectors import matrix_of, text_of

NORTH, EAST, NORTH_EAST = text_of([0, 2]), text_of([3, 0]), text_of([1, 1])


def collection(**vectors):
    return {"texts": list(vectors), "vectors": list(vectors.values())}


def test_scores_are_cosines_and_the_best_come_first():
    found = search([collection(north=NORTH, both=NORTH_EAST, east=EAST)], [NORTH], 2)

    assert found == [{"text": "north", "score": 1.0}, {"text": "both", "score": 0.707107}]


def test_of_several_vectors_a_passage_has_its_best_score_and_is_there_once():
    parts = [collection(north=NORTH, both=NORTH_EAST), collection(north=NORTH, east=EAST)]
    found = search(parts, [NORTH, EAST], 5)

    assert found == [
        {"text": "east", "score": 1.0},
        {"text": "north", "score": 1.0},
        {"text": "both", "score": 0.707107},
    ]


def test_what_is_found_is_the_same_when_cosines_are_reckoned_in_parts(monkeypatch):
    dice = np.random.default_rng(7)
    held = [
        {"texts": [str(n) for n in range(9)], "vectors": list(map(text_of, dice.random((9, 4))))}
    ]
    sought = list(map(text_of, dice.random((7, 4)) - 0.5))
    whole = search(held, sought, 9)
    monkeypatch.setattr(exact_search, "_COSINES", 20)
    assert search(held, sought, 9) == whole


def test_a_vector_of_zeros_is_near_to_nothing():
    found = search([collection(none=text_of([0, 0]), south=text_of([0, -1]))], [NORTH], 2)

    assert found == [{"text": "none", "score": 0.0}, {"text": "south", "score": -1.0}]


def test_nothing_is_found_where_nothing_is():
    assert search([], [NORTH], 3) == []
    assert search([collection()], [NORTH], 3) == []
    assert search([collection(north=NORTH)], [], 3) == []


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_however_a_collection_is_cut_what_is_found_is_the_same(passages, cuts, seed):
    dice = np.random.default_rng(seed)
    vectors = [text_of(row) for row in dice.normal(size=(passages, 17))]
    texts = [f"passage {number}" for number in range(passages)]
    sought = [text_of(row) for row in dice.normal(size=(3, 17))]
    edges = sorted(dice.integers(0, passages + 1, cuts).tolist())
    parts = [
        {"texts": texts[begin:end], "vectors": vectors[begin:end]}
        for begin, end in zip([0, *edges], [*edges, passages], strict=True)
    ]
    whole = {"texts": texts, "vectors": vectors}

    assert search(parts[::-1], sought, 7) == search([whole], sought, 7)


def test_equal_scores_are_in_the_order_of_their_texts():
    assert [each["text"] for each in best_of([("b", 0.5), ("a", 0.5), ("c", 0.9)], 3)] == list(
        "cab"
    )


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (["no base64!"], "no base64"),
        (["AAA="], "2 bytes"),
        ([text_of([float("nan")])], "infinite, or none"),
        ([text_of([float("inf")])], "infinite, or none"),
        ([text_of([1]), text_of([1, 2])], "several models"),
    ],
)
def test_what_is_no_vector_is_refused(vectors, message):
    with pytest.raises(InvalidRequest, match=message):
        matrix_of(vectors)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(InvalidRequest, match=r"of 1 numbers .* among vectors of 2: .* same model"):
        search([collection(north=NORTH)], [text_of([1])], 3)
