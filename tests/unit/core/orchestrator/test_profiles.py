"""What is learnt of agents, online: convergence, change, bounds, restarts."""

import itertools
from random import Random

import pytest

from kairos.core import FEATURES, POOLED_AGENT, QUANTILES
from kairos.core.orchestrator import pools as pools_module
from kairos.core.orchestrator.profiles import Profiles
from kairos.core.position import Position, features
from tests.support.core.learnt import profile, sample, samples


def fed(*groups, **options):
    profiles = Profiles(**options)
    for each in itertools.chain(*groups):
        profiles.add(each)
    return profiles


def learnt(profiles):
    """All that is published now, by key."""
    learning = profiles.take_changed()
    found, _ = learning.learn() if learning else ([], [])
    return {each.key: each for each in found}


def status(profiles, agent="writer", app="app"):
    (found,) = [s for s in profiles.status("t") if (s.app, s.agent) == (app, agent)]
    return found


def test_a_profile_says_what_the_calls_were_like():
    calls = [
        sample(us=us, remaining_us=3 * us, remaining_stages=stages, completion_tokens=tokens)
        for us, stages, tokens in ((10, 1, 100), (30, 2, None), (50, 6, 300), (70, 7, 200))
    ]
    found = learnt(fed(calls))["t", "app", "writer"]

    assert found.samples == 4
    assert found.call_us.mean == pytest.approx(40)
    assert found.remaining_us.mean == pytest.approx(120)
    assert found.remaining_us.quantiles == pytest.approx(
        [30] * 16 + [90] * 16 + [150] * 16 + [210] * 16
    )
    assert found.completion_tokens.mean == pytest.approx(200)
    assert found.remaining_stages == 4


def test_tokens_that_no_engine_told_are_not_made_up():
    found = learnt(fed([sample(completion_tokens=None)]))

    assert found["t", "app", "writer"].completion_tokens is None


def test_paths_are_mixed_by_how_often_they_were_taken():
    """A router that sends three tasks in four down a short path."""
    short, long = sample("router", remaining_us=100), sample("router", remaining_us=900)
    found = learnt(fed([short, short, long, short] * 4))["t", "app", "router"]

    assert found.remaining_us.quantiles == pytest.approx([100] * 48 + [900] * 16)


def test_sampling_doubles():
    profiles, published, checks = Profiles(), [], []
    for count, each in enumerate(samples(600), start=1):
        before = 0 if count == 1 else status(profiles).checks
        profiles.add(each)
        if status(profiles).checks > before:
            checks.append(count)
        if ("t", "app", "writer") in learnt(profiles):
            published.append(count)

    assert checks == published == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_beyond_the_window_checks_go_on_each_half_and_publishing_each_quarter():
    profiles, published, checks = Profiles(window=64), [], []
    for count, each in enumerate(samples(192), start=1):
        before = 0 if count == 1 else status(profiles).checks
        profiles.add(each)
        if status(profiles).checks > before:
            checks.append(count)
        if ("t", "app", "writer") in learnt(profiles):
            published.append(count)

    assert checks[-5:] == [64, 96, 128, 160, 192]
    assert published[-9:] == [64, 80, 96, 112, 128, 144, 160, 176, 192]


def test_a_steady_agent_converges_and_the_distance_that_says_so_is_told():
    profiles = fed(samples(512, spread=0.3))

    found = status(profiles)
    assert found.converged
    assert 0 < found.distance < 0.1
    assert learnt(profiles)["t", "app", "writer"].converged


def test_a_few_calls_that_happen_to_agree_are_not_converged():
    assert not status(fed([sample()] * 8)).converged
    assert status(fed([sample()] * 16)).converged


def test_an_agent_whose_calls_go_on_growing_does_not_converge():
    profiles = fed(sample(us=1000 * n, visit=2) for n in range(1, 513))

    assert not status(profiles).converged
    assert status(profiles).distance > 0.1


@pytest.mark.parametrize("steady", ["us", "remaining_us"])
def test_both_distributions_must_converge(steady):
    random = Random(1)
    calls = []
    for n in range(1, 257):
        times = {"us": 1000 * n, "remaining_us": 1000 * n}
        times[steady] = random.randint(900, 1100)
        calls.append(sample(visit=2, **times))

    assert not status(fed(calls)).converged


def test_only_the_window_is_remembered():
    profiles = fed([sample(us=1)] * 20, [sample(us=9, visit=2)] * 16, window=16)

    assert status(profiles).samples == 16
    assert learnt(profiles)["t", "app", "writer"].call_us.mean == pytest.approx(9)


def test_an_agent_that_changes_is_learnt_again_from_its_new_calls():
    profiles = fed(samples(400))
    assert status(profiles).converged
    learnt(profiles)

    for each in samples(40, mean_us=4_000_000, seed=1):
        profiles.add(each)
    assert status(profiles).reopened == 1
    assert not status(profiles).converged
    found = learnt(profiles)["t", "app", "writer"]
    assert found.samples < 40
    assert found.call_us.mean == pytest.approx(4e6, rel=0.25)

    for each in samples(400, mean_us=4_000_000, seed=2):
        profiles.add(each)
    assert status(profiles).converged
    assert status(profiles).reopened == 1
    assert learnt(profiles)["t", "app", "writer"].call_us.mean == pytest.approx(4e6, rel=0.1)


@pytest.mark.parametrize(("of_call", "of_rest"), [(1, 4), (4, 1)])
def test_a_change_of_either_distribution_is_a_change(of_call, of_rest):
    before = [sample(us=each.call_us, remaining_us=10**7 + each.call_us) for each in samples(200)]
    after = [
        sample(us=of_call * each.call_us, remaining_us=of_rest * 10**7 + each.call_us)
        for each in samples(64, seed=1)
    ]

    assert status(fed(before, after)).reopened == 1


def test_a_pool_is_not_reopened_when_its_mixture_changes():
    profiles = fed(samples(200), samples(200, agent="reader", mean_us=9_000_000, seed=1))

    assert status(profiles, POOLED_AGENT).reopened == 0


def test_sampling_doubles_again_after_a_change():
    profiles = fed(samples(400), samples(64, mean_us=8_000_000, seed=1))
    assert status(profiles).reopened == 1
    before = status(profiles).checks
    for each in samples(40, mean_us=8_000_000, seed=2):
        profiles.add(each)

    assert status(profiles).checks > before


def test_a_small_change_is_found_when_more_calls_are_compared():
    before = samples(900, spread=0.3)
    profiles = fed(before, samples(300, spread=0.3, mean_us=1_250_000, seed=1))

    assert status(profiles).reopened == 1
    found = learnt(profiles)["t", "app", "writer"].call_us.mean
    assert found == pytest.approx(1_250_000, rel=0.05)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 5))]
)
def test_a_steady_agent_is_never_reopened(seed):
    """Five agents, 20,000 calls each: 15,000 tests of change."""
    profiles = fed(samples(20_000, spread=0.8, seed=seed))
    assert status(profiles).reopened == 0


def test_a_change_that_is_certain_but_small_does_not_reopen():
    before, after = samples(500, spread=0.01), samples(200, mean_us=1_050_000, spread=0.01, seed=1)

    assert status(fed(before, after)).reopened == 0


def test_long_workflows_are_no_change():
    """Calls of one workflow depend on each other: here what remains falls from 100 to 1, over and
    over, so that the newest never look like those before them."""
    workflow = [sample(us=1000, remaining_us=1000 * (100 - n), visit=n + 1) for n in range(100)]

    assert status(fed(workflow * 100)).reopened == 0


def test_a_change_clears_the_app_model_of_the_agents_older_calls_only():
    others = samples(200, agent="reader", seed=5)
    profiles = fed(others, samples(400), samples(40, mean_us=8_000_000, seed=1))
    _, models = profiles.take_changed().learn()
    (model,) = [each for each in models if each.app == "app"]

    assert status(profiles).reopened == 1
    assert model.samples == 200 + status(profiles).samples
    assert set(model.agents) == {"reader", "writer"}


def test_censored_calls_are_counted_and_teach_nothing():
    profiles = fed(samples(10))
    before = learnt(profiles)
    for _ in range(3):
        profiles.censor(("t", "app", "writer"))
    profiles.censor(("t", "app", "never seen"))

    assert before
    assert learnt(profiles) == {}
    assert status(profiles).censored == 3
    assert status(profiles).samples == 10
    assert status(profiles, POOLED_AGENT).censored == 1


def test_every_call_also_feeds_the_pool_of_its_app_and_that_of_everything():
    profiles = fed(
        [sample("a", us=10), sample("b", us=30), sample("a", us=80, app="x", tenant="u")]
    )
    means = {key: each.call_us.mean for key, each in learnt(profiles).items()}

    assert means["t", "app", POOLED_AGENT] == pytest.approx(20)
    assert means["u", "x", POOLED_AGENT] == pytest.approx(80)
    assert means[POOLED_AGENT, POOLED_AGENT, POOLED_AGENT] == pytest.approx(40)


def test_names_beyond_the_bound_are_pooled_and_counted():
    profiles = fed((sample(f"a{n}", us=10) for n in range(9)), max_agents=4)

    assert [each.agent for each in profiles.status("t")] == [POOLED_AGENT, "a0", "a1", "a2", "a3"]
    assert [each.pooled for each in profiles.status("t")] == [5, 0, 0, 0, 0]
    assert status(profiles, POOLED_AGENT).samples == 9


def test_agents_of_all_apps_together_are_bounded():
    profiles = fed((sample("a", app=f"app{n}") for n in range(5)), max_tracked=3)

    assert sum(each.agent == "a" for each in profiles.status("t")) == 3


def test_apps_beyond_the_bound_are_pooled_into_everything():
    profiles = fed((sample(app=f"app{n}", us=10) for n in range(5)), max_apps=2)
    found = learnt(profiles)

    assert {key for key in found if key[2] == POOLED_AGENT} == {
        ("t", "app0", POOLED_AGENT),
        ("t", "app1", POOLED_AGENT),
        (POOLED_AGENT, POOLED_AGENT, POOLED_AGENT),
    }
    assert profiles.status("t")[-1].app == "app1"
    assert profiles.pooled == 3


@pytest.fixture
def soon_unused(monkeypatch):
    """20 calls of an app without an agent, or 40 of everything without an app, are long."""
    monkeypatch.setattr(pools_module, "MODEL_CALLS", 20)
    monkeypatch.setattr(pools_module, "_UNUSED_APP", 40)


def names(profiles):
    return [(each.app, each.agent) for each in profiles.status("t") if each.agent != POOLED_AGENT]


def test_a_flood_of_names_pushes_out_no_agent_that_works(soon_unused):
    profiles = Profiles(max_agents=3)
    for n in range(200):
        profiles.add(sample("worker" if n % 10 == 0 else f"n{n}"))

    assert ("app", "worker") in names(profiles)
    assert len(names(profiles)) == 3


def test_a_name_unused_for_long_makes_room_and_is_told_to_be_forgotten(soon_unused):
    profiles = Profiles(max_agents=2)
    for agent in ["worker", "old", *["worker"] * 20]:
        assert ("app", "new") not in names(profiles)
        profiles.add(sample(agent))
    assert profiles.take_changed().forgotten == ()

    profiles.add(sample("new"))
    learning = profiles.take_changed()
    assert learning.forgotten == (("t", "app", "old"),)
    assert ("t", "app", "new") in [each.key for each in learning.learn()[0]]
    assert names(profiles) == [("app", "new"), ("app", "worker")]
    profiles.add(sample("new"))
    assert profiles.take_changed().forgotten == ()


@pytest.mark.parametrize("bounds", [{"max_apps": 2}, {"max_tracked": 2}])
def test_an_app_unused_for_long_makes_room_with_all_its_agents(soon_unused, bounds):
    profiles = Profiles(**bounds)
    for app in ["busy", "old", *["busy"] * 40, "new"]:
        profiles.add(sample(app=app))

    learning = profiles.take_changed()
    assert learning.forgotten == (("t", "old", POOLED_AGENT), ("t", "old", "writer"))
    published, models = learning.learn()
    assert {each.app for each in published} == {"busy", "new", POOLED_AGENT}
    assert {each.app for each in models} == {"busy", "new", POOLED_AGENT}
    assert names(profiles) == [("busy", "writer"), ("new", "writer")]


@pytest.mark.parametrize("bounds", [{"max_apps": 2}, {"max_tracked": 2}])
def test_apps_that_work_are_not_forgotten_for_a_new_one(soon_unused, bounds):
    profiles = Profiles(**bounds)
    for app in ["a", "b"] * 40 + ["new"]:
        profiles.add(sample(app=app))

    assert names(profiles) == [("a", "writer"), ("b", "writer")]


def test_who_comes_back_is_forgotten_no_more(soon_unused):
    profiles = Profiles(max_agents=1, max_tracked=2)
    for agent in ["a", *["pooled"] * 19, "b", *["pooled"] * 19, "a"]:
        profiles.add(sample(agent))

    assert profiles.take_changed().forgotten == (("t", "app", "b"),)
    profiles.add(sample("c", app="other"))
    assert names(profiles) == [("app", "a"), ("other", "c")]


def test_an_app_that_comes_back_is_forgotten_no_more(soon_unused):
    profiles = Profiles(max_apps=1)
    for app in ["a", *["pooled"] * 39, "b", *["pooled"] * 39, "a"]:
        profiles.add(sample(app=app))

    assert profiles.take_changed().forgotten == (("t", "b", POOLED_AGENT), ("t", "b", "writer"))


def test_models_are_learnt_anew_from_time_to_time():
    profiles, found = Profiles(), {}
    for count, each in enumerate(samples(2_048), start=1):
        profiles.add(each)
        learning = profiles.take_changed()
        if learning is not None and learning.models:
            found[count] = {data.app for data in learning.models}

    assert list(found)[:12] == [*range(1, 11), 12, 14]  # a fifth more
    assert list(found)[-3:] == [1_333, 1_589, 1_845]  # 256 more
    assert all(apps == {("t", "app"), (POOLED_AGENT, POOLED_AGENT)} for apps in found.values())


def test_a_tenant_sees_its_own_agents_only():
    profiles = fed([sample("mine"), sample("theirs", tenant="u")])

    assert [each.agent for each in profiles.status("t")] == [POOLED_AGENT, "mine"]


def test_nothing_is_published_twice():
    profiles = fed(samples(5))
    assert profiles.take_changed() is not None
    assert profiles.take_changed() is None


def test_what_was_taken_does_not_change_with_what_comes_after():
    profiles = fed([sample(us=10)] * 16, window=16)
    learning = profiles.take_changed()
    for _ in range(16):
        profiles.add(sample(us=90))

    assert {each.call_us.mean for each in learning.learn()[0]} == {10}


def test_the_same_samples_teach_the_same():
    calls = samples(300) + samples(100, agent="reader", seed=3)
    assert fed(calls).take_changed().learn() == fed(calls).take_changed().learn()


def long_app():
    """Calls of which each has half of the work of the one before still to come."""
    random = Random(7)
    return [
        sample(
            agent,
            remaining_us=int(8e6 / 2**stage * random.lognormvariate(0, 0.3)),
            position=Position(stage=stage, visit=stage + 1, prompt_tokens=100 + 50 * stage),
        )
        for _ in range(80)
        for stage in range(5)
        for agent in ("writer", "critic")
    ]


def test_a_restart_publishes_again_what_was_published():
    before = fed(long_app())
    profiles, models = before.take_changed().learn()
    after = Profiles()
    after.restore(profiles, models)
    profiles_again, models_again = after.take_changed().learn()

    assert [each.key for each in profiles_again] == [each.key for each in profiles]
    for old, new in zip(profiles, profiles_again, strict=True):
        assert new.converged == old.converged
        assert new.remaining_stages == pytest.approx(old.remaining_stages)
        for name in ("remaining_us", "call_us", "completion_tokens"):
            assert getattr(new, name).mean == pytest.approx(getattr(old, name).mean)
            assert getattr(new, name).quantiles == pytest.approx(getattr(old, name).quantiles)
    asked = features(Position(stage=2, visit=3, prompt_tokens=200))
    assert [m.remaining_us("critic", asked) for m in models_again] == pytest.approx(
        [m.remaining_us("critic", asked) for m in models]
    )


def test_one_odd_call_after_a_restart_does_not_overturn_what_was_known():
    profiles, models = fed(long_app()).take_changed().learn()
    after = Profiles()
    after.restore(profiles, models)
    position = Position(stage=2, visit=3, prompt_tokens=200)
    after.add(sample("critic", remaining_us=10**9, position=position))
    after.take_changed()
    after.add(sample("critic", remaining_us=10**9, position=position))
    _, models_after = after.take_changed().learn()

    asked = features(position)
    for old, new in zip(models, models_after, strict=True):
        assert new.remaining_us("critic", asked) < 3 * old.remaining_us("critic", asked)


def test_new_behaviour_outweighs_what_was_restored():
    after = Profiles()
    after.restore([profile("writer", [1_000_000], samples=5000)])
    for each in samples(512, mean_us=5_000_000):
        after.add(each)

    assert learnt(after)["t", "app", "writer"].call_us.mean == pytest.approx(5e6, rel=0.15)


def test_what_was_restored_is_no_evidence_of_change():
    """Quantiles of all visits would differ from those of first visits, which the test looks at."""
    after = Profiles()
    after.restore([profile("writer", [1_000_000], samples=5000)])
    for each in samples(70, mean_us=5_000_000):
        after.add(each)

    assert status(after).reopened == 0


def test_convergence_goes_on_from_what_was_restored():
    after = Profiles()
    after.restore([profile("writer", [1_000_000], samples=5000)])
    for each in samples(64, spread=0.1):
        after.add(each)

    assert status(after).checks == 1
    assert status(after).distance < 0.1


def test_few_samples_are_restored_as_few():
    after = Profiles()
    after.restore([profile("writer", range(3), samples=3)])

    assert learnt(after)["t", "app", "writer"].samples == 3
    assert status(after).samples == 3 < QUANTILES


def test_what_another_version_learnt_is_left_out():
    old = profile("writer", [5])
    short = type(old.remaining_us)(mean=5.0, quantiles=(5.0,))
    _, models = fed(samples(8)).take_changed().learn()
    assert len(models[0].weights) == FEATURES
    after = Profiles()
    after.restore(
        [profile("writer", [5], call_us=short), profile("empty", [5], samples=0)],
        [
            type(m)(**{f: getattr(m, f) for f in m.__struct_fields__} | {"weights": (1.0,)})
            for m in models
        ],
    )

    assert after.take_changed() is None


def test_bounds_hold_for_what_is_restored():
    after = Profiles(max_agents=2)
    after.restore([profile(f"a{n}", [5]) for n in range(5)])

    assert [each.agent for each in after.status("t")] == [POOLED_AGENT, "a0", "a1"]


def test_the_whole_of_it_is_all_that_changed_since_it_was_published():
    profiles, (*calls, last) = Profiles(), samples(13, agent="writer")
    for each in calls:
        profiles.add(each)
    assert profiles.take_changed() is not None
    profiles.add(last)
    assert profiles.take_changed() is None  # published at 8 and 16, and the model at 12 and 14

    whole = profiles.take_changed(whole=True)

    everything = {("writer", 13), (POOLED_AGENT, 13)}
    assert {(each.key[2], len(each.rows)) for each in whole.windows} == everything
    assert {each.app for each in whole.models} == {("t", "app"), (POOLED_AGENT, POOLED_AGENT)}
    assert profiles.take_changed(whole=True) is None


def test_what_was_published_as_it_was_due_is_no_change_any_more():
    profiles = Profiles()
    for each in samples(4, agent="writer"):
        profiles.add(each)
        profiles.take_changed()

    assert profiles.take_changed(whole=True) is None
