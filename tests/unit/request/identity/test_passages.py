"""Passages are found wherever a text stands, and by the compiled functions as by numpy."""

import sys
from collections import Counter
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.request.identity import passages
from kairos.request.identity.passages import CompiledPassages, Passages
from tests.support.examples import examples

texts_of_bytes = st.lists(st.binary(max_size=400), max_size=6)


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def read(request):
    if request.param == "numpy":
        return Passages()
    return CompiledPassages(request.getfixturevalue("reading"))


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def read_anew(request):
    if request.param == "numpy":
        return Passages
    return partial(CompiledPassages, request.getfixturevalue("reading"))


def numbers(hashes):
    return memoryview(hashes).cast("I").tolist()


@given(texts=texts_of_bytes)
def test_texts_have_the_same_passages_read_together_as_one_by_one(read, texts):
    assert read.passages_of(texts) == [read.passages_of([each])[0] for each in texts]


@given(text=st.binary(max_size=500), before=st.binary(max_size=40), after=st.binary(max_size=40))
def test_a_text_has_its_passages_wherever_it_stands(read, text, before, after):
    [inside] = read.passages_of([text])
    [outside] = read.passages_of([before + text + after])
    assert set(numbers(inside)) <= set(numbers(outside))


@given(sizes=st.lists(st.integers(0, 3 * passages.TEXT_BYTES), max_size=4), seed=st.integers(0, 99))
@examples(20)
def test_texts_of_any_length_are_read_and_about_one_window_in_eight_counts(read, sizes, seed):
    random = Random(seed)
    texts = [random.randbytes(size) for size in sizes]
    for size, found in zip(sizes, map(numbers, read.passages_of(texts)), strict=True):
        windows = max(0, min(size, passages.TEXT_BYTES) - passages.WINDOW + 1)
        assert abs(len(found) - windows / 8) <= 20 + windows / 40


@given(
    st.lists(
        st.binary(max_size=400)
        | st.builds(lambda seed, size: Random(seed).randbytes(size), st.integers(), st.just(70_000))
        | st.builds(lambda text, times: text * times, st.binary(max_size=9), st.integers(1, 5_000)),
        max_size=4,
    )
)
def test_the_compiled_functions_find_the_same_passages(reading, texts):
    assert CompiledPassages(reading).passages_of(texts) == Passages().passages_of(texts)


def test_they_do_so_whatever_the_length(reading):
    every = next(
        bytes([n]) for n in range(256) if len(Passages().passages_of([bytes([n]) * 32])[0])
    )
    for text in (Random(7).randbytes(2_000), every * 2_000):  # of which each window counts
        texts = [text[-size:] for size in range(1, len(text))]
        assert CompiledPassages(reading).passages_of(texts) == Passages().passages_of(texts)


# Few values, so that texts share passages, and few slots, so that they take each other's places.
hashes = st.lists(st.integers(0, 300) | st.integers(0, 2**32 - 1), min_size=1, max_size=40)
scopes = st.sampled_from([0, 5, 2**32 - 1])
said = st.tuples(hashes, st.integers(1, 9), st.integers(1, 3), scopes, st.just([]) | hashes)
steps = st.lists(said | st.tuples(hashes, scopes), max_size=12)


@given(steps)
def test_the_compiled_functions_remember_and_find_whose_they_are_as_numpy_does(reading, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passages, "_SLOTS", 64)
        ways = [Passages(), CompiledPassages(reading)]
        for found, *more in steps:
            if len(more) == 1:
                one, other = (way.count_carried(packed(found), *more) for way in ways)
                assert one == other
                continue
            *whose, prompt = more
            for way in ways:
                way.remember(packed(found), *whose, packed(prompt))
            one, other = ((way._hashes, way._owners, way._tenants, way._slots_held) for way in ways)
            assert [each.tolist() for each in one] == [each.tolist() for each in other]


@given(steps)
def test_each_tenant_is_said_to_hold_as_many_passages_as_it_does(read_anew, steps):
    way = read_anew()
    for found, *more in steps:
        if len(more) > 1:
            *whose, prompt = more
            way.remember(packed(found), *whose, packed(prompt))
    taken = way._tenants[way._owners[:, 0] != 0].tolist()
    held = {tenant: count for tenant, count in enumerate(way._slots_held.tolist()) if count}
    assert held == Counter(taken)


def test_a_tenant_with_many_passages_takes_no_place_of_one_with_few(read_anew, monkeypatch):
    monkeypatch.setattr(passages, "_SLOTS", 1 << 12)
    way, random = read_anew(), Random(7)
    mine, later = (packed(random.sample(range(1 << 32), 100)) for _ in range(2))
    way.remember(mine, 1, 1, 5, b"")
    before = way.count_carried(mine, 5)[1]
    for number in range(2, 20):
        flood = packed(random.randrange(2**32) for _ in range(4_000))
        way.remember(flood, number, number, 6, b"")

    assert sum(way._slots_held) == 1 << 12
    assert way.count_carried(mine, 5)[1] > before - 5  # while the other had fewer
    way.remember(later, 99, 99, 5, b"")
    assert sum(way.count_carried(later, 5).values()) > 90  # but for those of one slot


def packed(numbers):
    return b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)


def test_a_passage_that_is_found_twice_counts_once(read):
    read.remember(packed([7, 8]), 1, 1, 0, b"")

    assert read.count_carried(packed([7, 7, 9, 7]), 0) == {1: 1}
    assert read.count_carried(b"", 0) == {}
