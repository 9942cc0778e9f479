"""Prompts that begin alike have the same marks, and others have none in common."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.live.request.body import read_body
from kairos.live.request.prefix import UNIT_BYTES, hash_prefix
from kairos.model import PREFIX_MARKS

LONG = "A long text about nothing in particular, which is the same for all. " * 20
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": LONG}}]


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


SYSTEM, ASKED = message("system", LONG), message("user", LONG[::-1])
ANSWERED, ASKED_AGAIN = message("assistant", "Yes. " * 200), message("user", "Why?")


def test_a_conversation_that_goes_on_has_the_marks_of_what_was_before():
    before, units = chat(SYSTEM, ASKED)
    after, more_units = chat(SYSTEM, ASKED, ANSWERED, ASKED_AGAIN)

    assert after[: len(before)] == before
    assert len(after) > len(before) > 5
    assert more_units > units


@given(st.integers(0, 300), st.integers(0, 300))
def test_that_holds_whatever_the_length_at_which_it_was_before(first, second):
    earlier = [message("user", "x" * first)]
    before, _ = chat(*earlier)
    after, _ = chat(*earlier, message("assistant", "y" * second))

    assert after[: len(before)] == before


@given(st.integers(0, 1500))
def test_a_text_that_goes_on_has_the_marks_of_what_was_before(length):
    before, _ = marks({"prompt": LONG[:length]})
    after, _ = marks({"prompt": LONG})

    assert after[: len(before)] == before


def test_two_conversations_share_their_system_prompt():
    units = len(json.dumps([SYSTEM])) // UNIT_BYTES
    one, _ = chat(SYSTEM, message("user", LONG))
    other, _ = chat(SYSTEM, message("user", "x" + LONG))

    assert in_common(one, other) == sum(mark <= units for mark in PREFIX_MARKS)


@pytest.mark.parametrize(
    "other",
    [{"model": "n"}, {"tools": TOOLS}, {"cache_salt": "s"}, {"model": "m", "cache_salt": "t"}],
)
def test_another_model_other_tools_or_another_salt_share_nothing(other):
    one, _ = chat(SYSTEM, ASKED)
    another, _ = chat(SYSTEM, ASKED, **other)

    assert in_common(one, another) == 0
    assert in_common(another, chat(SYSTEM, ASKED, **other)[0]) == len(another)


def test_salts_differ_also_from_each_other():
    salted = [chat(SYSTEM, cache_salt=salt)[0] for salt in ("s", "t", None)]

    assert in_common(salted[0], salted[1]) == 0
    assert salted[2] == chat(SYSTEM)[0]  # none


def test_settings_that_are_no_part_of_the_prompt_do_not_matter():
    assert chat(SYSTEM, seed=1, stream=True, max_tokens=5) == chat(SYSTEM, temperature=0.5)


def test_tools_come_before_messages_wherever_the_body_has_them():
    messages = [SYSTEM, ASKED]
    first = {"model": "m", "tools": TOOLS, "messages": messages}
    last = {"model": "m", "messages": messages, "tools": TOOLS}

    assert marks(first) == marks(last)
    other, _ = chat(ASKED, tools=TOOLS)
    of_tools = len(json.dumps(TOOLS)) // UNIT_BYTES
    shared = in_common(marks(first)[0], other)
    assert shared >= sum(mark <= of_tools for mark in PREFIX_MARKS) > 0


def test_an_image_is_a_part_of_the_prompt():
    def with_image(data):
        url = {"url": f"data:image/png;base64,{data}"}
        return chat(message("user", [{"type": "image_url", "image_url": url}]), ASKED)

    one, units = with_image("a" * 1000)
    other, _ = with_image("b" * 1000)

    assert in_common(one, with_image("a" * 1000)[0]) == len(one) == len(other)
    assert in_common(one, other) == 0
    assert units > 1000 // UNIT_BYTES


@pytest.mark.parametrize("ids", [list(range(1000, 1400)), [list(range(1000, 1400))]])
def test_prompts_of_tokens_share_what_they_begin_with(ids):
    before, _ = marks({"prompt": ids})
    if isinstance(ids[0], int):
        after, _ = marks({"prompt": [*ids, 7, 8] * 2})
        assert after[: len(before)] == before
    other = [9, *ids] if isinstance(ids[0], int) else [[9], *ids]
    assert in_common(before, marks({"prompt": other})[0]) == 0


def test_instructions_come_before_what_is_asked():
    one, _ = marks({"instructions": LONG, "input": "one"})
    other, _ = marks({"input": [message("user", LONG)], "instructions": LONG})

    assert in_common(one, other) == len(one) > 3


def test_space_at_the_end_of_the_list_does_not_matter():
    tight = marks({"messages": [SYSTEM]})
    spaced = json.dumps(SYSTEM).encode() + b" \n\t\r" * 16
    read = read_body(b'{"messages": [%s] }' % spaced, chat=True, streams_usage=True)

    assert (read.prefix, read.prefix_units) == tight


@pytest.mark.parametrize("content", [b"{}", b'{"messages":[]}', b'{"prompt":""}', b'{"input":""}'])
def test_next_to_nothing_has_no_marks(content):
    read = read_body(content, chat=False, streams_usage=True)

    assert (read.prefix, read.prefix_units) == ((), 0)


def test_there_is_a_mark_where_the_prompt_reaches_it_and_none_before():
    for mark in PREFIX_MARKS[:20]:
        reached = mark * UNIT_BYTES
        assert len(hash_prefix(b"x" * reached, b"")) == PREFIX_MARKS.index(mark) + 1
        assert len(hash_prefix(b"x" * (reached - 1), b"")) == PREFIX_MARKS.index(mark)


def test_marks_are_bounded_in_number_and_size():
    last = PREFIX_MARKS[-1] * UNIT_BYTES
    hashes = hash_prefix(bytes(last + (1 << 20)), b"m")

    assert len(hashes) == len(PREFIX_MARKS) < 100
    assert all(0 <= each < 1 << 32 for each in hashes)
    assert len(set(hashes)) == len(hashes)
    assert hashes == hash_prefix(bytes(last), b"m")


@given(st.binary(min_size=256, max_size=2000), st.integers(0, 255), st.data())
def test_a_byte_that_differs_changes_every_mark_from_there_on(prompt, byte, data):
    at = data.draw(st.integers(0, len(prompt) - 1))
    changed = prompt[:at] + bytes([byte]) + prompt[at + 1 :]
    one, other = hash_prefix(prompt, b""), hash_prefix(changed, b"")

    for mark, a, b in zip(PREFIX_MARKS, one, other, strict=False):
        assert (a == b) == (byte == prompt[at] or mark * UNIT_BYTES <= at)


def test_marks_rise():
    assert all(a < b for a, b in pairwise(PREFIX_MARKS))
