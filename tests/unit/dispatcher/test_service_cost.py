"""What a call costs its instance."""

import pytest

from kairos.dispatcher.booking import Booking
from kairos.dispatcher.service_cost import service_us
from kairos.dispatcher.speed import Speed, StepPace
from kairos.events import Finished
from kairos.model import SECOND
from tests.support import build


def cost_us(*, prompt=0, cached=0, answer=0, seqs=4, kv=None, finished=None):
    booking = Booking(build.request("r", prompt=prompt), "i", 0, cached)
    instance = build.instance("i", seqs=seqs, kv=kv)
    speed = Speed(StepPace())
    return service_us(booking, instance, speed, SECOND, answer, 1, finished)


def test_a_sequence_is_its_share_of_the_instance():
    assert cost_us(seqs=4) == SECOND / 4


def test_where_memory_is_the_larger_share_that_counts():
    assert cost_us(answer=100, kv=100) == SECOND / 2
    assert cost_us(answer=10, kv=100) == SECOND / 4


def test_nobody_holds_more_than_all_of_it():
    assert cost_us(answer=1_000, kv=100) == SECOND


def test_while_a_prompt_is_computed_all_of_the_instance_is_held():
    speed = Speed(StepPace())
    computing_us = speed.prefill_us(1_000) - speed.token_us(1)
    expected = computing_us + (SECOND - computing_us) / 4
    assert cost_us(prompt=1_000) == pytest.approx(expected)


def test_what_is_cached_is_held_and_not_computed():
    assert cost_us(prompt=1_000, cached=1_000) == SECOND / 4
    assert cost_us(prompt=1_000, cached=1_000, kv=2_000) == SECOND / 2


def test_the_engines_word_counts():
    told = Finished("r", prompt_tokens=1_000, cached_tokens=1_000)
    assert cost_us(prompt=10, finished=told) == SECOND / 4


def test_where_all_prompts_are_alike_no_more_is_taken_for_computing_than_there_can_be():
    """Then a first token's time says nothing of what a token of a prompt adds."""
    pace = StepPace()
    speed = Speed(pace)
    for _ in range(400):
        pace.prompt.see(50, 11_000)
        pace.token.see(1, 10_000)
    booking = Booking(build.request("r", prompt=50), "i", 0, 0)
    cost = service_us(booking, build.instance("i", seqs=4), speed, SECOND, 0, 1)
    assert cost == pytest.approx(SECOND / 4, rel=0.01)
