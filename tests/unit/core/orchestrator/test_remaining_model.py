"""A linear model of the logarithm of what is left."""

import math
from random import Random

import msgspec
import numpy as np
import pytest

from kairos.core import FEATURES, POOLED_AGENT
from kairos.core.learnt import MAX_REMAINING_US
from kairos.core.orchestrator.profiles import Profiles
from kairos.core.orchestrator.remaining_model import UNTRACKED, Calls, fit
from kairos.core.position import Position, features
from tests.support.core.learnt import sample

NAMES = {0: "writer", 1: "critic"}


def call(stage=0, prompt=100, served_us=0):
    return features(Position(stage=stage, visit=1, prompt_tokens=prompt, served_us=served_us))


def app_of(count, work, seed=0, noise=0.0, groups=(0, 1)):
    """Calls of agents `groups` at random places, each with `work(stage, group)` left, in µs."""
    random, calls = Random(seed), Calls()
    for _ in range(count):
        stage, group = random.randrange(6), random.choice(groups)
        left = work(stage, group) * random.lognormvariate(0, noise)
        calls.add(call(stage), max(1, int(left)), group)
    return calls.rows()


def test_what_is_left_is_learnt_by_place_and_by_agent():
    def work(stage, group):
        return 9e6 / (stage + 1) * (4 if group else 1)

    model = fit("t", "app", app_of(2_000, work, noise=0.2), NAMES)

    for group, name in NAMES.items():
        for stage in range(6):
            assert model.remaining_us(name, call(stage)) == pytest.approx(
                work(stage, group), rel=0.2
            )
    assert model.samples == 2_000


def test_what_no_line_follows_is_told_by_the_agents_habits():
    """An agent whose third visit is the long one, and another whose prompts of one size are."""
    random, calls = Random(4), Calls()
    for _ in range(2_000):
        visit, prompt, group = (
            random.randint(1, 6),
            random.choice([50, 100, 300]),
            random.choice([0, 1]),
        )
        special = visit == 3 if group == 0 else prompt == 100
        asked = features(Position(stage=4, visit=visit, prompt_tokens=prompt))
        calls.add(asked, 9_000_000 if special else 1_000_000, group)
    model = fit("t", "app", calls.rows(), NAMES)

    def estimate(agent, visit, prompt):
        asked = features(Position(stage=4, visit=visit, prompt_tokens=prompt))
        return model.remaining_us(agent, asked)

    for visit in range(1, 7):
        expected = 9e6 if visit == 3 else 1e6
        assert estimate("writer", visit, 100) == pytest.approx(expected, rel=0.3)
    for prompt in (50, 100, 300):
        expected = 9e6 if prompt == 100 else 1e6
        assert estimate("critic", 2, prompt) == pytest.approx(expected, rel=0.3)


def test_habits_survive_a_restart_and_give_way_to_new_ones():
    def model(special_us, count, prior=None):
        calls = Calls()
        for n in range(count):
            asked = features(Position(stage=1, visit=n % 4 + 1, prompt_tokens=100))
            calls.add(asked, special_us if n % 4 == 2 else 1_000_000, 0)
        return fit("t", "app", calls.rows(), NAMES, prior)

    third = features(Position(stage=1, visit=3, prompt_tokens=100))
    old = model(9_000_000, 2_000)
    kept = fit("t", "app", Calls().rows(), NAMES, old)
    assert kept.remaining_us("writer", third) == pytest.approx(
        old.remaining_us("writer", third), rel=1e-6
    )
    new = model(1_000_000, 4_000, old)
    assert new.remaining_us("writer", third) == pytest.approx(1e6, rel=0.2)


def test_residuals_tell_how_far_off_the_estimates_are():
    model = fit("t", "app", app_of(4_000, lambda *_: 1e6, noise=0.5), NAMES)

    assert np.std(model.residuals) == pytest.approx(0.5, rel=0.1)
    assert np.mean(model.residuals) == pytest.approx(0, abs=0.02)
    assert list(model.residuals) == sorted(model.residuals)


def test_an_agent_with_few_calls_is_taken_for_almost_an_average_one():
    rows = app_of(500, lambda *_: 1e6, groups=(0,))
    strange = app_of(1, lambda *_: 64e6, groups=(1,))
    model = fit("t", "app", np.concatenate((rows, strange)), NAMES)

    known, once = model.remaining_us("writer", call(2)), model.remaining_us("critic", call(2))
    assert known == pytest.approx(1e6, rel=0.05)
    assert known < once < 8 * known  # not 64 times


def test_an_agent_never_seen_is_taken_for_an_average_one():
    model = fit("t", "app", app_of(1_000, lambda _, group: 4e6 if group else 1e6), NAMES)

    assert model.remaining_us("unknown", call(2)) == pytest.approx(2e6, rel=0.1)


def test_calls_of_names_that_are_not_tracked_count_without_an_effect_of_their_own():
    rows = app_of(400, lambda *_: 3e6, groups=(UNTRACKED,))
    model = fit("t", "app", rows, {})

    assert model.agents == {}
    assert model.remaining_us("anyone", call(2)) == pytest.approx(3e6, rel=0.05)


def test_one_call_is_enough_for_an_estimate():
    model = fit("t", "app", app_of(1, lambda *_: 5e6), NAMES)

    assert model.remaining_us("writer", call(0)) == pytest.approx(5e6, rel=0.01)
    assert model.remaining_us("writer", call(90, 10**6, 10**12)) == pytest.approx(5e6, rel=0.01)


def test_beyond_what_was_seen_nothing_grows_or_shrinks():
    """Work that doubles with each stage, seen from the third to the sixth."""
    rows = app_of(1_000, lambda stage, _: 1e6 * 2**stage)
    model = fit("t", "app", rows[rows[:, 0] > call(1)[0] + 0.01], NAMES)

    def estimate(**place):
        return model.remaining_us("writer", call(**place))

    assert estimate(stage=500) == pytest.approx(estimate(stage=5), rel=0.01)
    assert estimate(stage=0) == pytest.approx(estimate(stage=2), rel=0.01)
    assert estimate(stage=5) > 4 * estimate(stage=2)
    assert estimate(stage=2, prompt=10**9) == pytest.approx(estimate(stage=2), rel=0.01)


def test_estimates_stay_between_a_microsecond_and_a_day():
    model = fit("t", "app", app_of(50, lambda *_: 1e6), NAMES)
    lower, higher = (msgspec.structs.replace(model, intercept=level) for level in (-1e9, 1e9))

    assert lower.remaining_us("writer", call()) == pytest.approx(1)
    assert higher.remaining_us("writer", call()) == pytest.approx(MAX_REMAINING_US)


def test_hundreds_of_agents_are_told_apart():
    names = {n: f"a{n}" for n in range(250)}
    rows = app_of(12_000, lambda _, group: 1e5 * (group + 1), groups=range(250))
    model = fit("t", "app", rows, names)

    for n in range(10, 250, 30):
        assert model.remaining_us(f"a{n}", call(2)) == pytest.approx(1e5 * (n + 1), rel=0.35)


def test_the_effects_are_those_of_plain_ridge_regression():
    """Against the whole system of equations, solved as it stands."""
    rows = app_of(300, lambda stage, group: 1e6 * (stage + 1) * (group + 1), noise=0.4, seed=3)
    model = fit("t", "app", rows, NAMES)

    x = np.column_stack(
        (np.ones(300), rows[:, :FEATURES], *(rows[:, -1] == group for group in NAMES))
    ).astype(float)
    penalty = np.diag([0.0, *[5.0] * (FEATURES + 2)])
    expected = np.linalg.solve(x.T @ x + penalty, x.T @ rows[:, FEATURES])
    found = (model.intercept, *model.weights, model.agents["writer"], model.agents["critic"])
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_prior_is_kept_where_nothing_new_is_known_and_outweighed_in_the_end():
    old = fit("t", "app", app_of(1_000, lambda *_: 1e6, noise=0.3), NAMES)
    kept = fit("t", "app", Calls().rows(), NAMES, old)
    few = fit("t", "app", app_of(4, lambda *_: 8e6, seed=1), NAMES, old)
    many = fit("t", "app", app_of(4_000, lambda *_: 8e6, seed=1), NAMES, old)

    def estimate(model):
        return model.remaining_us("writer", call(2))

    assert estimate(kept) == pytest.approx(estimate(old))
    assert kept.residuals == pytest.approx(old.residuals)
    assert (kept.samples, few.samples) == (64, 68)
    assert estimate(old) < estimate(few) < 1.6 * estimate(old)
    assert estimate(many) == pytest.approx(8e6, rel=0.1)


def test_news_from_the_end_of_workflows_hardly_changes_what_is_known_of_their_beginning():
    old = fit("t", "app", app_of(1_000, lambda stage, _: 9e6 / (stage + 1)), NAMES)
    calls = Calls()
    for _ in range(10):
        calls.add(call(5), 4_500_000, 0)
    new = fit("t", "app", calls.rows(), NAMES, old)

    ratios = [
        new.remaining_us("critic", at) / old.remaining_us("critic", at) for at in (call(0), call(5))
    ]
    assert 0.75 < ratios[0] < 1.25
    assert 1.3 < ratios[1] < 3


def test_the_level_of_an_app_is_no_part_of_the_model_of_all_apps():
    """One app's calls are short at every stage, the other's long, and comes to later stages."""
    profiles = Profiles()
    random = Random(2)
    for n in range(3_000):
        app, stage = ("long", random.randrange(4, 8)) if n % 2 else ("short", random.randrange(5))
        left = (64e6 if app == "long" else 1e6) / 2**stage
        position = Position(stage=stage, visit=1, prompt_tokens=100)
        profiles.add(sample(app=app, remaining_us=int(left), position=position))
    _, models = profiles.take_changed().learn()
    (of_all,) = [each for each in models if each.app == POOLED_AGENT]

    assert of_all.agents == {}
    assert of_all.remaining_us("", call(7)) < of_all.remaining_us("", call(1)) / 8


def test_the_newest_calls_of_a_group_are_kept_and_all_of_the_others():
    calls = Calls()
    for n in range(1, 9):
        calls.add(call(n), 1_000 * n, n % 2)
    calls.keep_newest(1, 2)
    kept = [round(math.exp(row[FEATURES]), -2) for row in calls.rows()]

    assert kept == [2_000, 4_000, 5_000, 6_000, 7_000, 8_000]
