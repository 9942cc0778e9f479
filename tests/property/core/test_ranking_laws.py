"""Laws of the ranking that hold for any agents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core.scheduler.ranking import Ranking, kendall_tau_b
from tests.support.core.learnt import profile
from tests.support.examples import examples

values = st.lists(st.integers(0, 10**9), min_size=1, max_size=8)
agents = st.lists(values, min_size=1, max_size=12)
few = examples(60)


def profiles_of(agents):
    return [profile(f"a{n}", values) for n, values in enumerate(agents)]


def ranks(profiles):
    ranking = Ranking()
    ranking.update(profiles)
    return ranking.ranks()


@few
@given(agents=agents, random=st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_matter(agents, random):
    profiles = profiles_of(agents)
    shuffled = list(profiles)
    random.shuffle(shuffled)
    one_by_one = Ranking()
    for each in shuffled:
        one_by_one.update([each])
    one_by_one.embed()

    assert ranks(shuffled) == one_by_one.ranks() == ranks(profiles)


@few
@given(agents=agents)
def test_an_agent_that_has_not_changed_keeps_its_place(agents):
    ranking = Ranking()
    ranking.update(profiles_of(agents))
    before = ranking.ranks()
    largest = max(abs(each.rank) for each in before)

    ranking.update(profiles_of(agents))

    after = {each.agent: each.rank for each in ranking.ranks()}
    for each in before:
        assert after[each.agent] == pytest.approx(each.rank, abs=1e-8 * largest)


@few
@given(agents=st.lists(st.integers(0, 10**9), min_size=1, max_size=12), shape=values)
def test_agents_that_a_line_can_hold_are_ranked_by_their_means(agents, shape):
    """One shape, moved: then all distances are differences of means, and nothing is lost."""
    profiles = [
        profile(f"a{n}", [shift + value for value in shape]) for n, shift in enumerate(agents)
    ]
    means = {each.agent: each.remaining_us.mean for each in profiles}

    for each in ranks(profiles):
        assert each.rank == pytest.approx(
            means[each.agent], rel=1e-6, abs=1e-6 * max(means.values())
        )


@few
@given(agents=agents, factor=st.sampled_from([2, 1024]))
def test_another_unit_of_time_changes_no_order(agents, factor):
    longer = [[factor * value for value in values] for values in agents]
    before, after = ranks(profiles_of(agents)), ranks(profiles_of(longer))

    assert [each.agent for each in after] == [each.agent for each in before]
    assert np.allclose([each.rank for each in after], [factor * each.rank for each in before])


@few
@given(
    pairs=st.lists(
        st.tuples(st.one_of(st.integers(0, 3), st.floats(-2, 2)), st.sampled_from([0, 0.5, 1, 7])),
        min_size=2,
        max_size=40,
    )
)
def test_how_far_two_orders_agree_is_scipys_figure_to_the_digit(pairs):
    from scipy.stats import kendalltau

    xs, ys = zip(*pairs, strict=True)
    if len(set(xs)) > 1 and len(set(ys)) > 1:
        assert kendall_tau_b(xs, ys) == kendalltau(xs, ys).statistic
