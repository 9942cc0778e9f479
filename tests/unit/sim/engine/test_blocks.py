"""The block pool by itself: what takes more calls than a readable test of the engine has."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.sim.engine.blocks import BlockPool, answer_contents, contents_of
from kairos.sim.engine.cost import Stretch
from kairos.workload.prompt import PromptPiece


def stored(pool, contents):
    pool.take(len(contents))
    return pool.store(contents)


def test_of_blocks_with_the_same_content_the_oldest_is_found():
    pool = BlockPool(9)
    first, second, third = (stored(pool, [5, 6]) for _ in range(3))

    assert len({*first, *second, *third}) == 6
    assert pool.find([5, 6, 7]) == first


def test_when_the_oldest_is_forgotten_the_next_one_is_found_and_a_new_one_is_no_older():
    pool = BlockPool(4)
    names = [stored(pool, [5]) for _ in range(4)]
    pool.release(names[0], 0)
    pool.take(1)
    assert pool.find([5]) == names[1]

    assert pool.store([5]) != names[0]
    assert pool.find([5]) == names[1]
    pool.release(names[1], 0)
    pool.take(1)
    assert pool.find([5]) == names[2]


def test_what_nobody_finds_any_more_is_new_again():
    pool = BlockPool(2)
    for name in (stored(pool, [5]), stored(pool, [5])):
        pool.release(name, 0)
    pool.take(2)

    assert pool.find([5]) == []
    assert pool.store([5]) == [5]


def test_a_block_is_free_when_the_last_who_uses_it_is_gone():
    pool = BlockPool(3)
    names = stored(pool, [5, 6])
    pool.share(names[:1])
    pool.release(names, 0)
    assert (pool.free, pool.idle_among(names)) == (2, 1)

    pool.release(names[:1], 0)
    assert (pool.free, pool.idle_among(names)) == (3, 2)


pieces = st.lists(
    st.builds(PromptPiece, name=st.sampled_from(["a", "b", "a 1"]), tokens=st.integers(1, 5)),
    max_size=4,
).map(tuple)


@given(one=pieces, other=pieces, block_size=st.integers(1, 4))
def test_contents_are_equal_where_all_tokens_up_to_there_are(one, other, block_size):
    tokens = [[(p.name, n) for p in prompt for n in range(p.tokens)] for prompt in (one, other)]
    contents = [contents_of(prompt, block_size) for prompt in (one, other)]

    for mine, theirs in zip(tokens, contents, strict=True):
        assert len(theirs) == len(mine) // block_size == len(set(theirs))
    for number in range(min(map(len, contents))):
        end = (number + 1) * block_size
        same = tokens[0][:end] == tokens[1][:end]
        assert (contents[0][number] == contents[1][number]) == same


def test_answers_are_in_no_prompt_and_in_no_other_answer():
    contents = contents_of((PromptPiece("a", 100),), 1)
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
