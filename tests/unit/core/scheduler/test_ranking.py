"""Agents on a line, by their distance from having nothing left."""

import msgspec
import numpy as np
import pytest

from kairos.core.scheduler import ranking as ranking_module
from kairos.core.scheduler.ranking import Ranking
from tests.support.core.learnt import profile


def ranking_of(*profiles):
    ranking = Ranking()
    ranking.update(profiles)
    return ranking


def ranks(ranking):
    return {each.agent: each.rank for each in ranking.ranks()}


def scattered(seed, agents=30):
    """Agents of many shapes, that no line can hold without error."""
    random = np.random.default_rng(seed)
    shapes = random.uniform(0.3, 5, agents)
    return [profile(f"a{n:02}", random.gamma(shape, 1e6, 64)) for n, shape in enumerate(shapes)]


def test_agents_that_never_vary_are_ranked_by_what_remains():
    ranking = ranking_of(profile("c", [900]), profile("a", [5]), profile("b", [70]))

    assert [each.agent for each in ranking.ranks()] == ["a", "b", "c"]
    assert ranks(ranking) == pytest.approx({"a": 5, "b": 70, "c": 900})
    assert ranking.kendall_tau() == pytest.approx(1)


def test_one_agent_is_as_far_from_the_anchor_as_its_mean():
    assert ranks(ranking_of(profile("only", [10, 20, 60, 70]))) == pytest.approx({"only": 40})


def test_agents_with_nothing_left_lie_on_the_anchor():
    assert ranks(ranking_of(profile("a", [0]), profile("b", [0]))) == {"a": 0, "b": 0}


def test_nobody_is_ranked_before_anything_is_known():
    ranking = Ranking()
    ranking.embed()

    assert ranking.ranks() == []
    assert ranking.kendall_tau() is None
    assert len(ranking) == 0


def test_agents_that_are_alike_have_one_rank_and_stand_in_order_of_their_names():
    others = scattered(seed=1)
    twins = [profile(name, [3e6, 4e6, 9e6], app=app) for name, app in (("b", "y"), ("a", "z"))]
    ranking = ranking_of(*twins, *others, profile("c", [3e6, 4e6, 9e6], app="x"))
    of_twins = [each for each in ranking.ranks() if each.agent in "abc"]

    assert len({each.rank for each in of_twins}) == 1
    assert [(each.app, each.agent) for each in of_twins] == [("x", "c"), ("y", "b"), ("z", "a")]


def test_an_agent_that_becomes_like_another_shares_its_rank():
    """One is placed, the other embedded."""
    agents = scattered(seed=6, agents=100)
    ranking = ranking_of(*agents)
    ranking.embed()
    for each in agents:
        ranking.update([msgspec.structs.replace(each, app="copy")])
    copies = {each.agent: each.rank for each in ranking.ranks() if each.app == "copy"}

    assert copies == {each.agent: each.rank for each in ranking.ranks() if each.app == "app"}


def test_namesakes_of_different_apps_and_tenants_are_different_agents():
    ranking = ranking_of(
        profile("writer", [10], app="x"),
        profile("writer", [20], app="y"),
        profile("writer", [30], app="y", tenant="u"),
    )
    found = [(each.tenant, each.app) for each in ranking.ranks()]

    assert found == [("t", "x"), ("t", "y"), ("u", "y")]


def test_an_agent_that_changes_takes_its_new_place_at_once_and_moves_no_other():
    before = scattered(seed=2)
    ranking = ranking_of(*before)
    old = ranks(ranking)

    ranking.update([profile("a00", [1e9])])

    new = ranks(ranking)
    assert new.pop("a00") > max(old.values())
    assert new == {name: rank for name, rank in old.items() if name != "a00"}
    assert ranking.ranks()[-1].agent == "a00"


def test_a_new_agent_is_placed_about_where_embedding_all_would_place_it():
    *known, new = scattered(seed=3, agents=60)
    ranking = ranking_of(*known)
    ranking.embed()
    ranking.update([new])
    placed = ranks(ranking)[new.agent]
    ranking.embed()

    assert placed == pytest.approx(ranks(ranking)[new.agent], rel=0.05)


def test_embedding_anew_takes_in_what_changed():
    profiles = scattered(seed=4)
    ranking = ranking_of(*profiles)
    ranking.embed()
    changed = [profile(each.agent, [n * 1e6]) for n, each in enumerate(profiles)]
    ranking.update(changed)
    ranking.embed()

    assert ranks(ranking) == ranks(ranking_of(*changed))


def test_an_agent_that_is_forgotten_is_ranked_no_more():
    ranking = ranking_of(profile("a", [1]), profile("b", [2]))
    ranking.embed()
    ranking.remove(("t", "app", "a"))
    ranking.remove(("t", "app", "never known"))

    assert set(ranks(ranking)) == {"b"}
    ranking.embed()
    assert ranks(ranking) == pytest.approx({"b": 2})
    assert len(ranking) == 1


def test_kendall_tau_tells_when_the_line_orders_otherwise_than_the_means():
    ranking = ranking_of(profile("a", [3, 5]), profile("b", [2, 5]), profile("c", [1, 20]))

    assert [each.agent for each in ranking.ranks()] == ["a", "b", "c"]  # means: 4, 3.5, 10.5
    assert ranking.kendall_tau() == pytest.approx(1 / 3)


def test_the_order_of_insertion_does_not_matter_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(ranking_module, "_DIGITS", 17)  # so that rounding hides nothing
    agents = scattered(seed=5, agents=150)

    assert ranking_of(*agents).ranks() == ranking_of(*reversed(agents)).ranks()


def test_order_by_means_hardly_suffers_from_the_embedding():
    for seed in range(10):
        assert ranking_of(*scattered(seed)).kendall_tau() > 0.97
