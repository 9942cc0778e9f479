"""How quick instances are, told from noisy calls."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core.dispatcher.speed import Speed, StepPace

# What calls may say: (is it of a prompt, tokens, µs, calls that run beside it).
SEEN = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(1, 2**48),
        st.one_of(st.integers(0, 10**7), st.integers(0, 10**15)),
        st.integers(1, 2000),
    ),
    max_size=60,
)


def told(speed, seen):
    for of_prompt, tokens, us, running in seen:
        if of_prompt:
            speed.prompt_took(tokens, us)
        else:
            speed.token_took(us / tokens, running)


def watched(seed, *, calls=600, speed=None, times=1.0, noise=0.3):
    """Calls on an instance where a token takes 8 ms and 0.2 ms for each call that runs, and a
    prompt 20 ms and 0.1 ms for each of its tokens, give or take; or so many times as long."""
    random, speed = Random(seed), speed or Speed(StepPace())
    for _ in range(calls):
        running, tokens = random.randint(1, 40), random.randint(50, 4000)
        speed.prompt_took(
            tokens, int(times * (20_000 + 100 * tokens) * random.lognormvariate(0, noise))
        )
        each_us = (8_000 + 200 * running) * random.lognormvariate(0, noise)
        speed.token_took(times * each_us, running)
    return speed


@pytest.mark.parametrize("seed", range(5))
def test_a_line_is_found_again_behind_the_noise(seed):
    speed = watched(seed)
    for running in (2, 10, 20, 38):
        assert speed.token_us(running) == pytest.approx(8_000 + 200 * running, rel=0.25)
    assert speed.token_slope_us(20) == pytest.approx(200, rel=0.5)
    for tokens in (500, 2000, 4000):
        assert speed.prefill_us(tokens) == pytest.approx(20_000 + 100 * tokens, rel=0.25)
    assert speed.compute_us(2000) == pytest.approx(200_000, rel=0.3)


def test_without_noise_it_is_found_exactly():
    speed = watched(1, noise=0.0)
    assert speed.token_us(10) == pytest.approx(10_000, rel=0.01)
    assert speed.token_slope_us(10) == pytest.approx(200, rel=0.05)
    assert speed.prefill_us(1000) == pytest.approx(120_000, rel=0.02)


def test_an_instance_that_slows_down_is_followed():
    speed = watched(2)
    watched(3, speed=speed, times=3.0, calls=300)
    assert speed.token_us(10) == pytest.approx(30_000, rel=0.3)


def test_until_calls_say_more_a_profile_does():
    assert Speed(StepPace(3_000.0)).token_us(1) == Speed(StepPace(3_000.0)).token_us(100) == 3_000
    assert Speed(StepPace()).token_us(1) == 25_000
    assert Speed(StepPace()).token_slope_us(5) == 0
    assert Speed(StepPace()).prefill_us(1000) == pytest.approx(200_000)


def test_one_call_does_not_decide():
    speed = Speed(StepPace(10_000.0))
    speed.token_took(20_000, 40)
    assert 10_000 < speed.token_us(8) < 20_000
    assert speed.token_us(40) < 20_000


def test_what_one_instance_says_is_known_of_all_of_its_kind_and_of_no_other():
    pace = StepPace(25_000.0)
    other, stranger = Speed(pace), Speed(StepPace(25_000.0))
    watched(4, speed=Speed(pace))
    assert other.token_us(10) == pytest.approx(10_000, rel=0.25)
    assert stranger.token_us(10) == 25_000


def test_an_instance_that_is_clearly_slower_than_its_kind_is_told_apart():
    pace = StepPace()
    slow, *others = (Speed(pace) for _ in range(4))
    for n in range(300):
        watched(n, calls=1, speed=slow, times=4.0)
        for each in others:
            watched(n + 1000, calls=1, speed=each)
    assert slow.token_us(10) > 2 * others[0].token_us(10)
    assert slow.prefill_us(1000) > 2 * others[0].prefill_us(1000)
    assert slow.compute_us(1000) > 2 * others[0].compute_us(1000)


@given(SEEN)
def test_whatever_calls_say_times_are_finite_never_negative_and_never_fall_with_load(seen):
    speed = Speed(StepPace())
    told(speed, seen)
    by_load = [speed.token_us(running) for running in (0, 1, 2, 10, 100, 10_000)]
    by_prompt = [speed.prefill_us(tokens) for tokens in (0, 1, 64, 1000, 10**6)]
    added = [speed.compute_us(tokens) for tokens in (0, 1, 64, 1000, 10**6)]
    for times in (by_load, by_prompt, added):
        assert all(math.isfinite(us) and us >= 0 for us in times)
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(times))
    assert min(by_load) >= 1
    assert speed.token_slope_us(10) >= 0


@pytest.mark.parametrize("absurd_us", [10**9, 10**15])
def test_one_absurd_call_says_no_more_than_one_that_took_ten_times_as_long(absurd_us):
    speed, again = watched(5), watched(5)
    again.token_took(10 * again.token_us(10), 10)
    again.prompt_took(500, int(10 * again.prefill_us(500)))
    speed.token_took(absurd_us, 10)
    speed.prompt_took(500, absurd_us)
    assert speed.token_us(10) == pytest.approx(again.token_us(10), rel=1e-4)
    assert speed.prefill_us(500) == pytest.approx(again.prefill_us(500), rel=1e-4)


def test_times_that_were_nothing_can_become_something_again():
    speed = Speed(StepPace())
    for _ in range(2000):
        speed.prompt_took(100, 0)
        speed.token_took(0.1, 1)
    for _ in range(2000):
        speed.prompt_took(100, 50_000)
        speed.token_took(5_000, 1)
    assert speed.prefill_us(100) == pytest.approx(50_000, rel=0.1)
    assert speed.token_us(1) == pytest.approx(5_000, rel=0.1)
