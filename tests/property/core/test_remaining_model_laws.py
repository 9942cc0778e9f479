"""Laws of the model of what is left that hold for any calls."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kairos.core.learnt import MAX_REMAINING_US
from kairos.core.orchestrator.remaining_model import LOGARITHM, UNTRACKED, Calls, _numbered, fit
from kairos.core.position import Position, features
from tests.support.examples import examples

NAMES = {0: "writer", 1: "critic"}
DAY = 86_400 * 10**6

positions = st.builds(
    Position,
    stage=st.integers(0, 10**4),
    visit=st.integers(1, 10**4),
    prompt_tokens=st.integers(1, 10**7),
    grown_tokens=st.integers(-(10**7), 10**7),
    served_us=st.integers(0, 10 * DAY),
    last_completion_tokens=st.integers(0, 10**6),
)
calls = st.tuples(positions, st.integers(0, DAY), st.sampled_from([UNTRACKED, 0, 1]))
apps = st.lists(calls, min_size=1, max_size=30)
few = examples(80)


def rows(app):
    kept = Calls()
    for position, remaining_us, group in app:
        kept.add(features(position), remaining_us, group)
    return kept.rows()


@few
@given(app=apps, asked=positions, agent=st.sampled_from(["writer", "unknown"]))
def test_whatever_was_seen_and_whatever_is_asked_the_estimate_is_a_time(app, asked, agent):
    model = fit("t", "app", rows(app), NAMES)

    assert 1 <= model.remaining_us(agent, features(asked)) <= MAX_REMAINING_US * (1 + 1e-9)


@few
@given(app=apps, again=apps)
def test_estimates_and_residuals_together_give_what_was_seen(app, again):
    """On average of logarithms, after a restart too, where no estimate had to be cut."""
    old = fit("t", "app", rows(app), NAMES)
    data = rows(again)
    for model, before in (
        (fit("t", "app", data, NAMES), ()),
        (fit("t", "app", data, NAMES, old), old.residuals),
    ):
        estimates = np.array(
            [
                model.remaining_us(NAMES.get(group, ""), numbers[:LOGARITHM])
                for numbers, (*_, group) in zip(data, again, strict=True)
            ]
        )
        assume((estimates > 1).all() and (estimates < MAX_REMAINING_US).all())
        off = np.concatenate((data[:, LOGARITHM] - np.log(estimates), before))
        assert np.mean(model.residuals) == pytest.approx(off.mean(), abs=1e-3)


@few
@given(app=apps, random=st.randoms(use_true_random=False))
def test_the_order_of_calls_does_not_matter(app, random):
    shuffled = list(app)
    random.shuffle(shuffled)
    model, other = (fit("t", "app", rows(each), NAMES) for each in (app, shuffled))

    for position, _, group in app:
        name, asked = NAMES.get(group, ""), features(position)
        assert other.remaining_us(name, asked) == pytest.approx(
            model.remaining_us(name, asked), rel=1e-3
        )


@given(values=st.lists(st.integers(-5, 5) | st.integers(-(10**9), 10**9), max_size=30))
def test_what_is_counted_is_numbered_as_what_is_sorted(values):
    array = np.array(values, dtype=int)
    different, number = _numbered(array)
    expected, inverse = np.unique(array, return_inverse=True)

    assert different.tolist() == expected.tolist()
    assert number.tolist() == inverse.tolist()
