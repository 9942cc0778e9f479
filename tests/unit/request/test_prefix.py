"""Prompts that begin alike have the same marks, and others have none in common."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import PREFIX_MARKS
from kairos.request import read_body
from kairos.request.body import UNIT_BYTES, hash_prefix

LONG = "A long text about nothing in particular, which is the same for all. " * 20


def chat(*messages, **more):
    """The marks of a chat, and the length of its prompt in units."""
    return marks({"model": "m", "messages": list(messages), **more})


def marks(body, **style):
    read = read_body(json.dumps(body, **style).encode(), chat=False, streams_usage=True)
    assert len(read.prefix) == sum(mark <= read.prefix_units for mark in PREFIX_MARKS)
    return read.prefix, read.prefix_units


def message(role, content):
    return {"role": role, "content": content}


def in_common(a, b):
    """How many marks."""
    same = [one == other for one, other in zip(a, b, strict=False)]
    assert same == sorted(same, reverse=True), "what differs once differs from there on"
    return sum(same)


SYSTEM = message("system", LONG)


@given(st.integers(0, 1500))
def test_a_text_that_goes_on_has_the_marks_of_what_was_before(length):
    before, _ = marks({"prompt": LONG[:length]})
    after, _ = marks({"prompt": LONG})

    assert after[: len(before)] == before


def test_settings_that_are_no_part_of_the_prompt_do_not_matter():
    assert chat(SYSTEM, seed=1, stream=True, max_tokens=5) == chat(SYSTEM, temperature=0.5)


@pytest.mark.parametrize("ids", [list(range(1000, 1400)), [list(range(1000, 1400))]])
def test_prompts_of_tokens_share_what_they_begin_with(ids):
    before, _ = marks({"prompt": ids})
    if isinstance(ids[0], int):
        after, _ = marks({"prompt": [*ids, 7, 8] * 2})
        assert after[: len(before)] == before
    other = [9, *ids] if isinstance(ids[0], int) else [[9], *ids]
    assert in_common(before, marks({"prompt": other})[0]) == 0


def test_space_at_the_end_of_the_list_does_not_matter():
    tight = marks({"messages": [SYSTEM]})
    spaced = json.dumps(SYSTEM).encode() + b" \n\t\r" * 16
    read = read_body(b'{"messages": [%s] }' % spaced, chat=True, streams_usage=True)

    assert (read.prefix, read.prefix_units) == tight


def test_marks_are_bounded_in_number_and_size():
    last = PREFIX_MARKS[-1] * UNIT_BYTES
    hashes = hash_prefix(bytes(last + (1 << 20)), b"m")

    assert len(hashes) == len(PREFIX_MARKS) < 100
    assert all(0 <= each < 1 << 32 for each in hashes)
    assert len(set(hashes)) == len(hashes)
    assert hashes == hash_prefix(bytes(last), b"m")


def test_marks_rise():
    assert all(a < b for a, b in pairwise(PREFIX_MARKS))
