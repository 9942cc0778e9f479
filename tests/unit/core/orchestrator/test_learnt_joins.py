"""Conclusions from when calls arrive; times in ms."""

from random import Random

import pytest

from kairos.core import MAX_SIGHTINGS, CallGraph, LearntJoins, SeenJoin
from kairos.core.learnt import Sighting
from kairos.core.orchestrator.learnt_joins import SURE, UNKNOWN, weigh
from kairos.core.orchestrator.spans import Span

MS = 1_000
APP = ("t", "app")


def sightings(of, number=50, seed=7):
    """`of` makes one from dice: (after, ends of others, branch, choices)."""
    draw, made = Random(seed), []
    for _ in range(number):
        after, others, *more = of(draw)
        branch, choices = more or ("b", 0.0)
        ends = tuple((agent, int(end * MS)) for agent, end in others.items())
        made.append(
            Sighting(
                agent="j",
                caller="a",
                after_us=int(after * MS),
                others=ends,
                branch=branch,
                choices=choices,
            )
        )
    return made


def after_last(draw, low=1, high=5, ends=(-500, 500)):
    end = draw.uniform(*ends)
    return max(0, end) + draw.uniform(low, high), {"c": end}


def after_named(draw, low=1, high=5, ends=(-500, 500)):
    return draw.uniform(low, high), {"c": draw.uniform(*ends)}


def with_one_more(draw):
    """A branch that goes on, now and then, when the call comes."""
    after, others = after_last(draw)
    return after, others | {"e": draw.choice((after - 900, after + 900))}


def names_the_last(draw):
    end = draw.uniform(-500, -1)
    return draw.uniform(1, 5), {"c" if end < -250 else "b": end}, "b" if end < -250 else "c", 0.0


def of_namesakes(draw):
    return draw.uniform(1, 5), {"b": draw.uniform(-500, -1)}, "b", 1.1


# Odds of a join: surely, surely not, or neither.
CASES = {
    "a join at once": (after_last, True, set()),
    "a join after a tool of a second or two": (
        lambda draw: after_last(draw, 1_000, 2_000, (-900, 900)),
        True,
        set(),
    ),
    "no join, at once": (after_named, False, {"c"}),
    "no join, after a tool that outlasts the others": (
        lambda draw: after_named(draw, 600, 700),
        False,
        set(),
    ),
    "others always end first": (lambda draw: after_named(draw, ends=(-500, -1)), None, set()),
    "a tool beside which ends differ by nothing": (
        lambda draw: after_named(draw, 5_000, 90_000, (-20, 20)),
        None,
        set(),
    ),
    "a join of some branches": (with_one_more, True, {"e"}),
    "the name is that of the branch that ends last": (names_the_last, True, set()),
    "one call after the last of several namesakes": (of_namesakes, True, set()),
    "the first of the branches to end leads to it": (
        lambda draw: after_named(draw, ends=(50, 500)),
        False,
        {"c"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_whether_calls_are_joins_follows_from_when_they_arrive(name):
    of, expected, beside = CASES[name]

    verdict = weigh(sightings(of), 0)

    odds = verdict.by_times + verdict.by_names
    assert (True if odds >= SURE else False if odds <= -SURE else None) == expected
    assert verdict.beside == beside


def test_clocks_that_disagree_make_no_branch_go_on():
    early = sightings(lambda draw: (draw.uniform(-3, 3), {"c": 0}))

    assert weigh(early, 0).beside == {"c"}
    assert weigh(early, 3 * MS).beside == set()


def learnt(joins, seen, app=APP):
    for each in seen:
        joins.add(SeenJoin(app, each))
    return joins.verdict(app, "j", "a")


def test_a_program_that_changes_is_learnt_anew():
    joins = LearntJoins()

    assert learnt(joins, sightings(after_last)).by_times >= SURE
    assert learnt(joins, sightings(after_named, 2 * MAX_SIGHTINGS)).by_times <= -SURE
    assert learnt(joins, sightings(after_last, 2 * MAX_SIGHTINGS)).by_times >= SURE


def test_of_no_app_but_its_own_anything_is_concluded():
    joins = LearntJoins()
    learnt(joins, sightings(after_last))

    assert joins.of(APP).verdict("j", "a").by_times >= SURE
    assert joins.of(("u", "app")).verdict("j", "a").by_times == 0
    assert joins.of(APP).verdict("j", "b").by_times == 0


def test_a_tenant_with_many_places_yields_its_own():
    joins = LearntJoins(max_places=20)
    learnt(joins, sightings(after_last))
    for n in range(100):
        joins.add(SeenJoin(("u", f"app-{n}"), sightings(after_last, 1)[0]))

    assert len(joins) == 20
    assert joins.of(APP).verdict("j", "a").by_times >= SURE


@pytest.mark.parametrize("of", [after_last, after_named, with_one_more, names_the_last])
@pytest.mark.parametrize("number", [1, 3, 4, 7, 20, 64, 100, 300])
def test_after_a_restart_the_same_is_concluded(of, number):
    before, after = LearntJoins(), LearntJoins()
    learnt(before, sightings(of, number))
    places = before.take_changed(whole=True)
    after.restore(places)

    (place,) = places
    assert (place.seen, len(place.sightings)) == (number, min(number, MAX_SIGHTINGS))
    expected = weigh(place.sightings, 0) if number >= 4 else UNKNOWN
    assert after.verdict(APP, "j", "a") == expected
    assert after.take_changed(whole=True) == ()


@pytest.mark.parametrize("seed", range(30))
def test_restarts_between_workflows_change_no_conclusion(seed):
    draw = Random(seed)
    of = draw.choice([after_last, after_named])
    all_of_them = sightings(of, 200, seed)
    without, restarted, kept = LearntJoins(), LearntJoins(), {}
    for each in all_of_them:
        without.add(SeenJoin(APP, each))
        restarted.add(SeenJoin(APP, each))
        if draw.random() < 0.05:  # a restart, before which all is saved
            kept |= {place.key: place for place in restarted.take_changed(whole=True)}
            restarted = LearntJoins()
            restarted.restore(kept.values())
    is_join = of is after_last
    for joins in (without, restarted):
        assert (joins.verdict(APP, "j", "a").by_times >= SURE) == is_join


def test_a_place_is_published_as_its_sightings_double_and_later_after_each_window():
    joins, published = LearntJoins(), []
    for number, each in enumerate(sightings(after_last, 400), start=1):
        joins.add(SeenJoin(APP, each))
        if joins.take_changed():
            published.append(number)
    assert published == [4, 8, 16, 32, 64, 128, 192, 256, 320, 384]


def test_what_makes_room_is_published_as_forgotten():
    joins = LearntJoins(max_places=3)
    for n in range(5):
        joins.add(SeenJoin(("u", f"app-{n}"), sightings(after_last, 1)[0]))
    gone = [each.app for each in joins.take_changed(whole=True) if not each.sightings]
    assert sorted(gone) == ["app-0", "app-1"]
    assert joins.take_changed(whole=True) == ()


def test_what_is_known_from_before_is_bounded_too():
    many = LearntJoins()
    for n in range(50):
        many.add(SeenJoin(("u", f"app-{n}"), sightings(after_last, 1)[0]))
    few = LearntJoins(max_places=10)
    few.restore(many.take_changed(whole=True))
    assert len(few) == 10


def map_reduce(draw, after_all):
    """Three searches at once, and one summary: after all of them, or after any one."""
    ends = [200 + draw.randint(0, 300) for _ in range(3)]
    rows = [
        ("plan", None, 0, 100),
        *(("search", "plan", 100 + n, end) for n, end in enumerate(ends)),
    ]
    begin = (max(ends) if after_all else draw.choice(ends)) + draw.randint(1, 9)
    rows.append(("sum", "search", begin, begin + 50))
    return [
        Span(id=f"c{n}", agent=agent, upstream=of, started_at=begin * MS, finished_at=end * MS)
        for n, (agent, of, begin, end) in enumerate(rows)
    ]


@pytest.mark.parametrize("after_all", [True, False])
def test_one_call_after_several_of_one_agent_is_known_for_a_join_of_them(after_all):
    draw, joins = Random(5), LearntJoins()
    for _ in range(50):
        graph = CallGraph(known=joins.of(APP))
        for span in map_reduce(draw, after_all):
            graph.add(span)
        for seen in graph.sightings():
            joins.add(SeenJoin(APP, seen))

    node = graph.nodes["c4"]
    assert (len(node.parents), node.caller == "c0") == ((3, True) if after_all else (1, False))
