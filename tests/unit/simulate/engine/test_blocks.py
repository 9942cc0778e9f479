"""The block pool by itself: what takes more calls than a readable test of the engine has."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from kairos.simulate.engine.blocks import (
    BlockPool,
    answer_contents,
    contents_of,
    number_of,
    part_of,
)
from kairos.simulate.engine.cost import Stretch
from kairos.simulate.workload.prompt import PromptPiece


def stored(pool, *given):
    contents = list(given)
    pool.take_blocks(number_of(contents))
    return pool.store(contents)


FIVE = range(5, 6)


def test_of_blocks_with_the_same_content_the_oldest_is_found():
    pool = BlockPool(9)
    first, second, third = (stored(pool, FIVE) for _ in range(3))

    assert len({*first, *second, *third}) == 3
    assert pool.find_blocks([range(5, 7)]) == first


def test_when_the_oldest_is_forgotten_the_next_one_is_found_and_a_new_one_is_no_older():
    pool = BlockPool(4)
    names = [stored(pool, FIVE) for _ in range(4)]
    pool.release(names[0], 0)
    pool.take_blocks(1)
    assert pool.find_blocks([FIVE]) == names[1]

    assert pool.store([FIVE]) != names[0]
    assert pool.find_blocks([FIVE]) == names[1]
    pool.release(names[1], 0)
    pool.take_blocks(1)
    assert pool.find_blocks([FIVE]) == names[2]


def test_what_nobody_finds_any_more_is_new_again():
    pool = BlockPool(2)
    for name in (stored(pool, FIVE), stored(pool, FIVE)):
        pool.release(name, 0)
    pool.take_blocks(2)

    assert pool.find_blocks([FIVE]) == []
    assert pool.store([FIVE]) == [FIVE]


def test_a_block_is_free_when_the_last_who_uses_it_is_gone():
    pool = BlockPool(3)
    names = stored(pool, range(5, 7))
    shared = pool.find_blocks([FIVE])
    pool.share(shared)
    pool.release(names, 0)
    assert (pool.free, pool.idle_among(pool.find_blocks([range(5, 7)]))) == (2, 1)

    pool.release(shared, 0)
    assert (pool.free, pool.idle_among(pool.find_blocks([range(5, 7)]))) == (3, 2)


def test_what_was_shared_in_part_makes_room_from_its_end_and_the_shared_part_when_it_is_idle():
    pool = BlockPool(12)
    pool.release(stored(pool, range(10, 16)), 0)
    pool.release(stored(pool, range(20, 24)), 0)
    shared = pool.find_blocks([range(10, 12)])
    pool.share(shared)
    pool.release(shared, 0)  # after all others now

    pool.take_blocks(3)
    assert number_of(pool.find_blocks([range(10, 16)])) == 5
    pool.take_blocks(5)
    assert (pool.find_blocks([range(10, 16)]), pool.find_blocks([range(20, 24)])) == (
        shared,
        [range(20, 22)],
    )
    pool.take_blocks(3)
    assert (pool.find_blocks([range(10, 16)]), pool.free) == ([range(10, 11)], 1)


@given(
    lengths=st.lists(st.integers(1, 5), max_size=4),
    first=st.integers(0, 20),
    end=st.integers(0, 20),
)
def test_a_part_of_contents_is_of_the_blocks_of_these_numbers(lengths, first, end):
    contents = [range(100 * n, 100 * n + length) for n, length in enumerate(lengths)]

    part = part_of(contents, first, end)
    assert [*chain(*part)] == [*chain(*contents)][first:end]
    assert number_of(part) == len([*chain(*part)])
    assert all(part)


pieces = st.lists(
    st.builds(PromptPiece, name=st.sampled_from(["a", "b", "a 1"]), tokens=st.integers(1, 5)),
    max_size=4,
).map(tuple)


@given(one=pieces, other=pieces, block_size=st.integers(1, 4))
def test_contents_are_equal_where_all_tokens_up_to_there_are(one, other, block_size):
    tokens = [[(p.name, n) for p in prompt for n in range(p.tokens)] for prompt in (one, other)]
    contents = [[*chain(*contents_of(prompt, block_size))] for prompt in (one, other)]

    for mine, theirs in zip(tokens, contents, strict=True):
        assert len(theirs) == len(mine) // block_size == len(set(theirs))
    for number in range(min(map(len, contents))):
        end = (number + 1) * block_size
        same = tokens[0][:end] == tokens[1][:end]
        assert (contents[0][number] == contents[1][number]) == same


def test_answers_are_in_no_prompt_and_in_no_other_answer():
    contents = chain(*contents_of((PromptPiece("a", 100),), 1))
    answers = [*answer_contents(1, 0, 100), *answer_contents(2, 0, 100)]

    assert len({*contents, *answers}) == 300
    assert max(answers) < 1 << 63


@given(
    steps=st.integers(1, 30),
    growth=st.integers(0, 20),
    more=st.integers(0, 50),
    time=st.integers(-1, 2000),
)
def test_steps_are_counted_as_they_end_and_begin(steps, growth, more, time):
    stretch = Stretch(steps, max(1, growth + more), growth)
    lengths = [stretch.first + growth * n for n in range(steps)]
    ends = [sum(lengths[: n + 1]) for n in range(steps)]

    assert [stretch.lasts(n + 1) for n in range(steps)] == ends
    ended = sum(end <= time for end in ends)
    if time >= 0:
        assert stretch.ended_within(time) == ended
        left = stretch.after(ended)
        assert [left.lasts(n + 1) for n in range(left.steps)] == [
            end - stretch.lasts(ended) for end in ends[ended:]
        ]
    begun = sum(begin < time for begin in [0, *ends[:-1]])
    assert stretch.begun_before(time).steps == begun
