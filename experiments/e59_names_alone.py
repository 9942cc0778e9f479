"""Measure what is learnt of drawn programs that send names of agents and upstreams alone.

2,000 programs without joins and 2,000 with, of 3 to 25 agents that are called once each, with tools
between calls. After 50 workflows of a program ten more are looked at: whether calls sit under their
true callers, and whether what remains after each is right. Ways: `learnt`, as Kairos does it;
`guessed`, where every call is taken for a join that arrives after all branches of a parallel group
(as it was); `named alone`, where calls are never joins. Expected of `learnt`: no remainder too
large by more than 5 % without joins; 95 % found of the joins that times can show, where
in some of the workflows another branch than the named one ended last, or the name changed. Left
out: agents that are called several times. Six minutes of one core.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.drawn_programs import (
    Step,
    drawn_program,
    joined_branches,
    played,
    truly_remaining,
)
from experiments.report import commit
from kairos.core import CallGraph, KnownJoins, LearntJoins, SeenJoin, remaining_work
from kairos.core.orchestrator.learnt_joins import Verdict

LEARNT_FROM, LOOKED_AT = 50, 10
TOO_LARGE, TOO_SMALL = 1.05, 0.95
_FOUND = 0.9  # of a join's calls that must sit in their place
_SHOWN = 0.1  # of the calls learnt from name another branch than most, or not the last
_PROGRAMS, _FEW = 2_000, 6
_APP = ("t", "app")


class _Guessed:
    """Takes each call for a join that may be a join."""

    def verdict(self, agent: str, caller: str | None) -> Verdict:  # noqa: ARG002
        return Verdict(math.inf)


class Count(msgspec.Struct):
    """Counts of the calls looked at; `programs_too_large`: programs with any such remainder."""

    programs: int = 0
    calls: int = 0
    wrong_callers: int = 0
    too_large: int = 0
    too_small: int = 0
    largest: float = 0.0  # as a ratio
    programs_too_large: int = 0
    joins: int = 0
    found: int = 0
    shown: int = 0  # joins that times can show: see `_SHOWN`
    shown_found: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of programs of a kind, by way."""

    commit: str
    joins: bool
    together: bool
    counts: dict[str, Count]


def measure(quick: bool) -> Iterator[Row]:
    at_commit, programs = commit(), _FEW if quick else _PROGRAMS
    for joins, together in ((False, True), (True, True), (False, False)):
        counts: dict[str, Count] = {}
        for seed in range(programs):
            look(seed, counts, joins=joins, together=together)
        yield Row(commit=at_commit, joins=joins, together=together, counts=counts)


def look(seed: int, counts: dict[str, Count], *, joins: bool, together: bool = True) -> None:
    """Play a drawn program, learn, and count what then comes out."""
    draw = Random(seed)  # noqa: S311
    program = drawn_program(draw, joins=joins)
    branch_of = dict(joined_branches(program))
    learnt, not_last = LearntJoins(), Counter[str]()
    names: dict[str, Counter[int]] = {}
    for _ in range(LEARNT_FROM):
        graph = CallGraph(known=learnt.of(_APP))
        calls = played(program, draw, together=together)
        for name, call in calls.items():
            graph.add(call.span)
            if call.step.joins:
                last = max(call.after, key=lambda each: calls[each].span.finished_at)
                named = branch_of[name][call.span.upstream or ""]
                not_last[name] += branch_of[name][last] != named
                names.setdefault(name, Counter())[named] += 1
        for sighting in graph.sightings():
            learnt.add(SeenJoin(_APP, sighting))
    shown = {
        name: not_last[name] + seen.total() - max(seen.values()) >= _SHOWN * seen.total()
        for name, seen in names.items()
    }
    ways: dict[str, KnownJoins | None] = {
        "learnt": learnt.of(_APP),
        "guessed": _Guessed(),
        "named alone": None,
    }
    state = draw.getstate()
    for name, known in ways.items():
        draw.setstate(state)
        count = counts.setdefault(name, Count())
        for join, right in _count(count, program, draw, known, together=together).items():
            count.joins += 1
            count.found += right
            count.shown += shown.get(join, False)
            count.shown_found += right and shown.get(join, False)


def _count(
    count: Count, program: Step, draw: Random, known: KnownJoins | None, *, together: bool
) -> dict[str, bool]:
    """Returns whether each join that was seen is found."""
    count.programs += 1
    any_too_large = False
    placed: dict[str, list[bool]] = {}
    for _ in range(LOOKED_AT):
        calls = played(program, draw, together=together)
        graph = CallGraph(known=known)
        for call in calls.values():
            graph.add(call.span)
        found, true = remaining_work(graph), truly_remaining(calls)
        for name, call in calls.items():
            ratio = found[name].work_us / true[name]
            right = graph.nodes[name].caller == call.caller
            count.calls += 1
            count.wrong_callers += not right
            count.too_large += ratio > TOO_LARGE
            count.too_small += ratio < TOO_SMALL
            count.largest = max(count.largest, ratio)
            any_too_large = any_too_large or ratio > TOO_LARGE
            if call.step.joins:
                placed.setdefault(name, []).append(right)
    count.programs_too_large += any_too_large
    return {name: sum(each) >= _FOUND * len(each) for name, each in placed.items()}


def section(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        kind = "with joins" if row.joins else "without joins"
        kind += "" if row.together else ", each branch after a tool of its own"
        for way, count in row.counts.items():
            lines.append(
                [
                    f"{kind}: {way}",
                    str(count.programs),
                    f"{100 * count.wrong_callers / count.calls:.2f}",
                    f"{100 * count.too_large / count.calls:.2f}",
                    f"{100 * count.too_small / count.calls:.2f}",
                    f"{count.largest:.1f}",
                    str(count.programs_too_large),
                    _share(count.found, count.joins),
                    _share(count.shown_found, count.shown),
                ]
            )
    head = [
        "programs",
        "wrong callers, %",
        "remainders too large, %",
        "too small, %",
        "largest ratio",
        "programs with one too large",
        "joins found, %",
        "of those that times show, %",
    ]
    return table(["", *head], lines)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def figures(rows: Sequence[Row]) -> list[Figure]:
    made = []
    for row in rows:
        count = row.counts["learnt"]
        unit = f"of {count.programs} programs"
        if row.joins:
            name, share = "joins of drawn programs found by names", count.found / count.joins
            figure = Figure(name=name, value=100 * share, unit="%", target=95.0, better="higher")
        elif row.together:
            name = "programs without joins with a remainder too large"
            figure = Figure(name=name, value=count.programs_too_large, unit=unit, target=1)
        else:
            name = "the same, each branch after a tool of its own"
            figure = Figure(name=name, value=count.programs_too_large, unit=unit, target=None)
        made.append(figure)
    return made


STUDY = Study(
    title="Drawn programs that tell names alone",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
