"""Prompts of a replay, as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.simulate.replay import WORDS, Wording, measure_wording
from kairos.simulate.workload.prompt import PromptPiece

pieces = st.builds(PromptPiece, st.sampled_from("abc"), st.integers(1, 40))
prompts = st.lists(pieces, min_size=1, max_size=4).map(tuple)


def tokens(prompt):
    """Which tokens a prompt has, by definition."""
    return [(piece.name, number) for piece in prompt for number in range(piece.tokens)]


def common(first, second):
    """Length of the longest common start."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))


@given(prompts)
def test_a_prompt_has_a_word_for_each_token(prompt):
    assert len(Wording("run").text(prompt).split()) == len(tokens(prompt))


@given(prompts, st.integers(0, 200))
def test_what_the_chat_template_adds_is_left_out_of_the_text_at_its_end(prompt, overhead):
    whole = Wording("run").text(prompt).split()
    rest = Wording("run", overhead_tokens=overhead).text(prompt).split()
    if overhead < len(whole):
        assert rest == whole[: len(whole) - overhead]
    else:
        assert rest == whole[:1]


@given(prompts, prompts, st.integers(0, 30))
def test_two_prompts_share_the_text_of_the_tokens_that_they_share(first, second, overhead):
    wording = Wording("run", overhead_tokens=overhead)
    shared = common(tokens(first), tokens(second))
    one, other = (wording.text(prompt).split() for prompt in (first, second))
    assert common(one, other) >= min(shared, len(one), len(other))


def test_prompts_share_no_more_than_their_pieces():
    first = (PromptPiece("system", 50), PromptPiece("one", 200))
    second = (PromptPiece("system", 50), PromptPiece("two", 200))
    texts = [Wording("run").text(prompt).split() for prompt in (first, second)]
    assert 50 <= common(*texts) < 60  # a word or two may be alike by chance


def test_text_is_the_same_in_a_run_and_another_in_another_run():
    prompt = (PromptPiece("system", 100),)
    assert Wording("run").text(prompt) == Wording("run").text(prompt)
    assert common(Wording("run").text(prompt).split(), Wording("two").text(prompt).split()) < 10


def test_each_word_is_drawn_about_as_often_as_any_other():
    text = Wording("run").text((PromptPiece("long", 64_000),))
    assert all(800 < text.count(f" {word}") < 1200 for word in WORDS)


class Server:
    """Counts tokens as a server whose vocabulary has these words whole, and whose template adds
    so many tokens."""

    def __init__(self, words=WORDS, pieces_of_others=2, overhead=0):
        self.words, self.pieces_of_others, self.overhead = set(words), pieces_of_others, overhead
        self.counted = 0

    async def __call__(self, text):
        self.counted += 1
        return self.count(text)

    def count(self, text):
        assert re.fullmatch("( [a-z]{3})+", text)
        return self.overhead + sum(
            1 if word in self.words else self.pieces_of_others for word in text.split()
        )


@pytest.mark.parametrize("overhead", [0, 37])
async def test_prompts_are_exact_where_all_words_are_one_token(overhead):
    server = Server(overhead=overhead)
    wording = await measure_wording(server, "run")
    for length in (overhead + 1, 50, 5000):
        assert (
            server.count(wording.text((PromptPiece("system", 20), PromptPiece("own", length))))
            == length + 20
        )
    assert server.counted == 2


@pytest.mark.parametrize("known", [WORDS[:40], WORDS[1:], WORDS[::2][:2] + WORDS[8:40]])
async def test_words_that_are_several_tokens_are_not_used(known):
    server = Server(known, overhead=11)
    wording = await measure_wording(server, "run")
    prompt = (PromptPiece("system", 100), PromptPiece("own", 1000))
    assert set(wording.text(prompt).split()) <= set(known)
    assert server.count(wording.text(prompt)) == 1100
    assert server.counted == 18


async def test_prompts_are_about_as_long_where_hardly_a_word_is_one_token():
    server = Server(WORDS[:5], pieces_of_others=3, overhead=11)
    wording = await measure_wording(server, "run")
    prompt = (PromptPiece("system", 1000), PromptPiece("own", 9000))
    assert server.count(wording.text(prompt)) == pytest.approx(10_000, rel=0.02)


async def test_a_server_that_counts_something_else_gets_a_word_for_each_token():
    async def count(text):
        return 1000 + len(text.split()) // len(WORDS)

    wording = await measure_wording(count, "run")
    assert len(wording.text((PromptPiece("own", 30),)).split()) == 30


@pytest.mark.parametrize("always", [0, 30])
async def test_a_server_that_does_not_count_gets_a_word_for_each_token(always):
    async def count(_):
        return always

    wording = await measure_wording(count, "run")
    assert len(wording.text((PromptPiece("own", 30),)).split()) == 30
