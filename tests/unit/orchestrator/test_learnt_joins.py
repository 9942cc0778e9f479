"""Conclusions from when calls arrive; times in ms."""

from random import Random

import pytest

from kairos.orchestrator.graph import CallGraph
from kairos.orchestrator.learnt_joins import (
    MAX_SIGHTINGS,
    SURE,
    LearntJoins,
    SeenJoin,
    Sighting,
    weigh,
)
from kairos.orchestrator.spans import Span

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
