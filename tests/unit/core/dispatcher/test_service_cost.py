"""What a call costs its instance."""

import pytest

from kairos.core import SECOND, Booking, Finished, service_us
from kairos.core.dispatcher.speed import Speed, StepPace
from tests.support.simulate import build

COMPUTING_US = SECOND / 5


def cost_us(*, prompt=0, cached=0, answer=0, seqs=4, kv=None, finished=None):
    """Of a call that runs for a second; its prompt is computed in a fifth of that, unless it is
    cached."""
    booking = Booking(build.request("r", prompt=prompt), "i", 0, cached)
    booking.computed = prompt - cached
    booking.computing_us = COMPUTING_US if prompt > cached else 0.0
    instance = build.instance("i", seqs=seqs, kv=kv)
    booking.generated = answer
    lengths = booking.lengths(finished)
    return service_us(booking, instance, Speed(StepPace()), SECOND, lengths)


def test_a_sequence_is_its_share_of_the_instance():
    assert cost_us(seqs=4) == SECOND / 4


def test_where_memory_is_the_larger_share_that_counts():
    assert cost_us(answer=100, kv=100) == SECOND / 2
    assert cost_us(answer=10, kv=100) == SECOND / 4


def test_nobody_holds_more_than_all_of_it():
    assert cost_us(answer=1_000, kv=100) == SECOND


def test_while_a_prompt_is_computed_all_of_the_instance_is_held():
    assert cost_us(prompt=1_000) == COMPUTING_US + (SECOND - COMPUTING_US) / 4


def test_a_call_that_ended_before_its_prompt_was_computed_held_all_of_it_until_then():
    booking = Booking(build.request("r", prompt=10), "i", 0, 0)
    booking.computed = 10
    booking.computing_us = COMPUTING_US
    assert service_us(booking, build.instance("i"), Speed(StepPace()), 1_000, (10, 0, 0)) == 1_000


def test_what_is_cached_is_held_and_not_computed():
    assert cost_us(prompt=1_000, cached=1_000) == SECOND / 4
    assert cost_us(prompt=1_000, cached=1_000, kv=2_000) == SECOND / 2


def test_the_engines_word_counts():
    all_cached = Finished("r", prompt_tokens=1_000, cached_tokens=1_000)
    assert cost_us(prompt=1_000, finished=all_cached) == SECOND / 4
    about = Finished("r", prompt_tokens=1_100, cached_tokens=0)
    assert cost_us(prompt=1_000, finished=about) == cost_us(prompt=1_000)
    more = Finished("r", prompt_tokens=2_000, cached_tokens=0)
    speed = Speed(StepPace())
    computing_us = speed.computing_us(speed.prefill_us(2_000), 0)
    expected = computing_us + (SECOND - computing_us) / 4
    assert cost_us(prompt=1_000, finished=more) == pytest.approx(expected)


def test_what_a_prompt_adds_to_a_first_token_is_what_it_is_computed_in():
    speed = Speed(StepPace())
    assert speed.computing_us(speed.prefill_us(1_000), 1) == pytest.approx(175_000)


def test_where_all_prompts_are_alike_no_more_is_taken_for_computing_than_there_can_be():
    """Then a first token's time says nothing of what a token of a prompt adds."""
    pace = StepPace()
    speed = Speed(pace)
    for _ in range(400):
        pace.prompt.add_point(50, 11_000)
        pace.token.add_point(1, 10_000)
    assert speed.computing_us(speed.prefill_us(50), 1) == pytest.approx(1_000, rel=0.01)
