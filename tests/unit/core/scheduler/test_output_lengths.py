"""What is known of the lengths of answers, call by call."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import QUANTILES
from kairos.core.learnt import distribution as distribution_of
from kairos.core.scheduler.output_lengths import _MAX_AGENTS, _WINDOW, OutputLengths
from tests.support.core import learnt
from tests.support.simulate import build


def seen(answers, tokens, agent="x", app="app"):
    for each in tokens:
        answers.learn_answer(build.request("r", app=app, agent=agent), each)


def distribution(answers, agent="x", app="app"):
    return answers.distribution(build.request("r", app=app, agent=agent))


def test_nothing_is_said_of_too_few_or_of_another_agent():
    answers = OutputLengths()
    seen(answers, [10] * 3)
    assert distribution(answers) is None
    seen(answers, [10])
    assert distribution(answers) is not None
    assert distribution(answers, agent="y") is None
    assert distribution(answers, app="other") is None


def test_the_first_answers_are_not_taken_for_all_that_there_are():
    """Short ones end first."""
    answers = OutputLengths()
    seen(answers, [2] * 4)
    assert distribution(answers).quantiles[-1] > 500
    assert sum(each > 30 for each in distribution(answers).quantiles) == QUANTILES // 2


def test_in_the_end_it_is_what_was_seen():
    answers = OutputLengths()
    seen(answers, [10] * _WINDOW + [200] * _WINDOW)  # behaviour changed
    quantiles = distribution(answers).quantiles
    assert sum(199 < each < 201 for each in quantiles) >= 0.8 * QUANTILES


def test_it_is_made_anew_now_and_then_not_with_each_answer():
    answers = OutputLengths()
    seen(answers, [10] * 100)
    made = distribution(answers)
    seen(answers, [10] * 5)
    assert distribution(answers) is made
    seen(answers, [10] * 10)
    assert distribution(answers) is not made


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=300))
def test_quantiles_ascend_and_their_mean_is_the_distributions(tokens):
    answers = OutputLengths()
    seen(answers, tokens)
    known = distribution(answers)
    assert len(known.quantiles) == QUANTILES
    assert list(known.quantiles) == pytest.approx(sorted(known.quantiles))
    assert sum(known.quantiles) / QUANTILES == pytest.approx(known.mean, abs=1e-6)


def test_agents_are_forgotten_that_were_not_seen_for_longest():
    answers = OutputLengths()
    seen(answers, [10] * 4, agent="first")
    seen(answers, [10] * 4, agent="kept")
    for n in range(_MAX_AGENTS - 2):
        seen(answers, [10], agent=f"a{n}")
    seen(answers, [10], agent="kept")
    seen(answers, [10], agent="one more")
    assert distribution(answers, agent="first") is None
    assert distribution(answers, agent="kept") is not None


def profile(tokens, samples, agent="x"):
    known = None if tokens is None else distribution_of(np.array(tokens, float))
    fields = {"tenant": "default", "samples": samples, "completion_tokens": known}
    return learnt.profile(agent, [1], **fields)


def test_a_new_balancer_begins_with_what_the_profile_says_as_if_it_had_seen_it():
    first, new = OutputLengths(), OutputLengths()
    lengths = [30, 5, 80, 41, 12, 60, 33, 90]
    seen(first, lengths)
    new.seed_from_profile(profile(lengths, 8))
    assert distribution(new).quantiles == pytest.approx(distribution(first).quantiles)
    seen(first, [500] * 4)
    seen(new, [500] * 4)
    assert distribution(new).quantiles == pytest.approx(distribution(first).quantiles)


def test_what_a_balancer_has_seen_itself_is_not_counted_again():
    answers = OutputLengths()
    seen(answers, [10] * 4)
    known = distribution(answers)
    answers.seed_from_profile(profile([900] * 50, 50))
    assert distribution(answers) is known

    early = OutputLengths()
    seen(early, [10] * 3)
    early.seed_from_profile(profile([900] * 50, 50))
    assert distribution(early).mean > 600


def test_a_profile_of_too_few_or_without_answers_says_nothing():
    answers = OutputLengths()
    answers.seed_from_profile(profile([10] * 3, 3))
    answers.seed_from_profile(profile(None, 50))
    assert distribution(answers) is None


def test_a_profile_of_many_calls_fills_the_window():
    answers = OutputLengths()
    answers.seed_from_profile(profile([10] * 64, 5_000))
    assert sum(each == 10 for each in distribution(answers).quantiles) >= 0.9 * QUANTILES
    seen(answers, [200] * _WINDOW)
    assert sum(each == 200 for each in distribution(answers).quantiles) >= 0.9 * QUANTILES
