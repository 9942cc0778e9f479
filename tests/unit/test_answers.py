"""What is known of the lengths of answers, call by call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.learnt import QUANTILES
from kairos.scheduler.answers import _MAX_AGENTS, _WINDOW, Answers
from tests import build


def seen(answers, tokens, agent="x", app="app"):
    for each in tokens:
        answers.see(build.request("r", app=app, agent=agent), each)


def distribution(answers, agent="x", app="app"):
    return answers.distribution(build.request("r", app=app, agent=agent))


def test_nothing_is_said_of_too_few_or_of_another_agent():
    answers = Answers()
    seen(answers, [10] * 3)
    assert distribution(answers) is None
    seen(answers, [10])
    assert distribution(answers) is not None
    assert distribution(answers, agent="y") is None
    assert distribution(answers, app="other") is None


def test_the_first_answers_are_not_taken_for_all_that_there_are():
    """Short ones end first."""
    answers = Answers()
    seen(answers, [2] * 4)
    assert distribution(answers).quantiles[-1] > 500
    assert distribution(answers).quantiles[len(distribution(answers).quantiles) // 2] > 50


def test_in_the_end_it_is_what_was_seen():
    answers = Answers()
    seen(answers, [10] * _WINDOW + [200] * _WINDOW)  # behaviour changed
    quantiles = distribution(answers).quantiles
    assert sum(199 < each < 201 for each in quantiles) >= 0.8 * QUANTILES


def test_it_is_made_anew_now_and_then_not_with_each_answer():
    answers = Answers()
    seen(answers, [10] * 100)
    made = distribution(answers)
    seen(answers, [10] * 5)
    assert distribution(answers) is made
    seen(answers, [10] * 10)
    assert distribution(answers) is not made


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=300))
def test_quantiles_ascend_and_their_mean_is_the_distributions(tokens):
    answers = Answers()
    seen(answers, tokens)
    known = distribution(answers)
    assert len(known.quantiles) == QUANTILES
    assert list(known.quantiles) == pytest.approx(sorted(known.quantiles))
    assert sum(known.quantiles) / QUANTILES == pytest.approx(known.mean, abs=1e-6)


def test_agents_are_forgotten_that_were_not_seen_for_longest():
    answers = Answers()
    seen(answers, [10] * 4, agent="first")
    seen(answers, [10] * 4, agent="kept")
    for n in range(_MAX_AGENTS - 2):
        seen(answers, [10], agent=f"a{n}")
    seen(answers, [10], agent="kept")
    seen(answers, [10], agent="one more")
    assert distribution(answers, agent="first") is None
    assert distribution(answers, agent="kept") is not None
