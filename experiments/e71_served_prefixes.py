"""Measure what it gives to keep static beginnings of a served flow in caches between invocations.

A chain of three roles of 200 to 3,000 tokens on one engine, while the prompts of others fill its
memory in 30 s to two minutes. Invocations come one by one: at random (Poisson), a few at once with
pauses between, or in bursts of activity with hours between; drawn are the mean gap of 5 s to 10
minutes, the memory's turnover, the engine. The same arrivals without touches.
Expected: found more often and no more tokens computed, touches included (each as 32 tokens and a
fiftieth of the beginning); where gaps are shorter or much longer than the turnover, no touches.
Left out: several engines; touches go as ordinary calls here, and as spare ones in a gateway.
Five minutes of one core.
"""

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, gap_figures, table
from experiments.e58_kept_prefixes import ROLES, BesideOthers, review
from experiments.report import commit
from kairos.core import PLACEMENTS, POLICIES, SECOND
from kairos.engines import load_profile
from kairos.simulate import World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.users import Feed
from kairos.workflows import FlowLimits, IssueCall, Passes, TouchPrefix
from kairos.workflows.execute.prefix_touches import ServedPrefix, touch_price

KINDS = ("at random", "a few at once", "now and then")
KV_TOKENS = 50_000
INVOCATIONS = 60
_OTHERS_TOKENS = 5_000
_CASES, _FEW = 12, 2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Invocations of one drawn case, with touches and without (`usual`)."""

    commit: str
    kind: str
    engine: str
    tokens: int  # of each beginning
    gap_s: float  # mean
    turnover_s: int  # in which others fill the memory
    beginnings: int
    found: int
    found_usual: int
    latency_s: float  # mean
    latency_usual_s: float
    computed: int  # tokens, touches included
    computed_usual: int
    touches: int


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for kind in KINDS:
        for seed in range(_FEW if quick else _CASES):
            draw = Random(f"{kind} {seed}")  # noqa: S311
            engine = draw.choice(("h200-llama3-8b", "a40-llama3-8b"))
            tokens, turnover_s = draw.choice((200, 800, 3_000)), draw.randint(30, 120)
            gap_s = 5 * 120 ** draw.random()
            arrivals = drawn_arrivals(draw, kind, gap_s)
            kept, usual = (
                Served(engine, tokens, turnover_s, arrivals, keeps=keeps) for keeps in (True, False)
            )
            yield Row(
                commit=at_commit,
                kind=kind,
                engine=engine,
                tokens=tokens,
                gap_s=round(gap_s, 1),
                turnover_s=turnover_s,
                beginnings=kept.beginnings,
                found=kept.found,
                found_usual=usual.found,
                latency_s=round(kept.latency_s, 4),
                latency_usual_s=round(usual.latency_s, 4),
                computed=kept.computed,
                computed_usual=usual.computed,
                touches=kept.touches,
            )


def drawn_arrivals(draw: Random, kind: str, gap_s: float) -> list[int]:
    """Return when invocations begin, in µs."""
    at, found = 0.0, []
    for number in range(INVOCATIONS):
        gap = draw.expovariate(1 / gap_s)
        if kind == KINDS[1]:
            gap = draw.uniform(0, 2) if number % 4 else 4 * gap
        elif kind == KINDS[2] and number % 20 == 0:
            gap += 3_600
        at += gap
        found.append(round(at * SECOND))
    return found


class ServedClient(BesideOthers):
    """Invocations of a flow one by one, whose beginnings are touched between them."""

    keeps = False

    def begin_keeping(self, arrivals: Sequence[int]) -> None:
        self.beginnings = self.found = self.touches = self.computed = 0
        self._arrivals = arrivals
        self._prefixes = self._plan.static_prefixes
        self._of = {name: at for at, each in enumerate(self._prefixes) for name in each.operators}
        self._kept = [ServedPrefix(each.tokens) for each in self._prefixes]
        self._due: list[int | None] = [None for _ in self._prefixes]

    def finish_call(self, request_id: str, cached_tokens: int) -> None:
        command, tokens = self._made[request_id].command, self.lengths(request_id)[0]
        now, number = self._clock.now(), self._of.get(command.operator)
        if number is None:
            pass  # of others
        elif isinstance(command, IssueCall):
            self.computed += tokens - cached_tokens
            self.beginnings += 1
            self.found += 2 * cached_tokens >= self._prefixes[number].tokens
            began_at = self._arrivals[command.row]
            self._touch_at(number, self._kept[number].on_call(began_at, now, cached_tokens))
        else:
            self.touches += 1
            self.computed += tokens - cached_tokens
            self.computed += round(touch_price(self._prefixes[number].tokens))
            self._touch_at(number, self._kept[number].on_touch(now, cached_tokens))
        super().finish_call(request_id, cached_tokens)

    def _touch_at(self, number: int, at: int | None) -> None:
        self._due[number] = at
        if at is not None and self.keeps:
            self._clock.call_at(max(at, self._clock.now()), lambda: self._touch_due(number, at))

    def _touch_due(self, number: int, at: int) -> None:
        if self._due[number] == at and self.ended is None:
            self._due[number] = None
            each = self._prefixes[number]
            self._touch(TouchPrefix(each.operators[0], each.model, each.body))

    def _look(self, calls: int) -> None:
        """Say nothing of pauses: a gateway has none."""
        del calls
        self._is_looking = False


class Served:
    """Invocations that have all ended."""

    def __init__(
        self,
        engine: str,
        tokens: int,
        turnover_s: int,
        arrivals: Sequence[int],
        *,
        keeps: bool,
    ) -> None:
        f, functions = review("rows that come late", tokens)
        plan = f.compile(Passes(cached=False, prefill=False, order=False))
        one = replace(load_profile(engine), kv_tokens=KV_TOKENS)
        rows = [{"q": f"question {n}"} for n in range(len(arrivals))]
        clients: list[Any] = []

        def client(clock: VirtualClock, feed: Feed) -> ServedClient:
            made = ServedClient(
                plan,
                FlowLimits(capacity=one.max_num_seqs, caches_prefixes=False),
                iter(rows),
                functions_runner(functions),
                clock,
                feed,
                arrives_at=lambda n: arrivals[min(n, len(arrivals) - 1)],
            )
            made.keeps = keeps
            made.every_us = turnover_s * SECOND * _OTHERS_TOKENS // KV_TOKENS
            made.begin_keeping(arrivals)
            made.begin_others()
            clients.append(made)
            return made

        World((), {"engine-0": one}, POLICIES["kairos"], PLACEMENTS["kairos"], clients=client).run()
        [ended] = clients
        assert not ended.failed
        took = [ended.ended_at_us[0, n] - at for n, at in enumerate(arrivals)]
        self.latency_s = fmean(took) / SECOND
        self.beginnings, self.found = ended.beginnings, ended.found
        self.touches, self.computed = ended.touches, ended.computed
        assert self.beginnings == len(ROLES) * len(arrivals)


def section(rows: Sequence[Row]) -> str:
    lines = []
    for kind in KINDS:
        for touched in (True, False):
            of = [row for row in rows if row.kind == kind and bool(row.touches) == touched]
            if of:
                lines.append([f"{kind}, {'with' if touched else 'no'} touches", *_line(of)])
    heads = [
        "cases",
        "found before",
        "found",
        "tokens computed",
        "time",
        "worst tokens",
        "best time",
    ]
    return table(["invocations", *heads], lines)


def _line(rows: Sequence[Row]) -> list[str]:
    asked = sum(row.beginnings for row in rows)
    computed = [100 * (row.computed / row.computed_usual - 1) for row in rows]
    took = [100 * (row.latency_s / row.latency_usual_s - 1) for row in rows]
    return [
        str(len(rows)),
        f"{100 * sum(row.found_usual for row in rows) / asked:.0f} %",
        f"{100 * sum(row.found for row in rows) / asked:.0f} %",
        f"{fmean(computed):+.1f} %",
        f"{fmean(took):+.1f} %",
        f"{max(computed):+.1f} %",
        f"{min(took):+.1f} %",
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    took = [100 * (row.latency_s / row.latency_usual_s - 1) for row in rows]
    name, unit = "time of invocations with touches of beginnings", f"%, {len(rows)} cases"
    return gap_figures(name, took, unit, mean=0.0, worst=2.0)


STUDY = Study(
    title="Static beginnings between invocations of served flows",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
