"""Measure whether static beginnings of prompts are in caches when a pause of a flow ends.

A chain of three roles of 200 to 3,000 tokens on one engine, while the prompts of others fill its
memory in eight seconds to a minute. Rows come in batches with pauses between; or all rows are
there, and a function between the first role and the others takes that long. Drawn are pauses and
how much the others ask. "Not kept" is what Kairos did before: beginnings were touched when rows
were first awaited, and never again in a pause.
Expected: found after most pauses in which it pays to keep them. Left out: engines of a pool that
are not equally full. A minute of one core.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.flow_workloads import words
from experiments.report import commit
from kairos import flow
from kairos.core import PLACEMENTS, POLICIES, SECOND, Finished, Record
from kairos.engines import load_profile
from kairos.simulate import World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.processors import Surroundings
from kairos.simulate.users import Feed
from kairos.workflows import FlowLimits, Functions, TouchPrefix
from kairos.workflows.compile.prompts import beginning

KINDS = ("rows that come late", "rows at hand, a slow function")
ENGINE = replace(load_profile("h200-llama3-8b"), kv_tokens=50_000)
ROLES = ("drafter", "critic", "judge")
BATCHES, BATCH = 4, 3
_OTHERS_TOKENS = 5_000  # of each of the others' prompts
_FLOWS, _FEW = 24, 2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Beginnings found after the pauses of one drawn flow."""

    commit: str
    kind: str
    tokens: int  # of each beginning
    pause_s: int
    turnover_s: int  # in which the others fill the memory
    beginnings: int  # that were asked for after a pause
    kept: int  # of these found
    not_kept: int
    touches: int
    touched_tokens: int  # that these computed


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for kind in KINDS:
        for seed in range(_FEW if quick else _FLOWS):
            draw = Random(seed)  # noqa: S311
            pause_s, turnover_s = draw.randint(5, 120), draw.randint(8, 60)
            tokens = draw.choice((200, 800, 3_000))
            kept, without = (
                Paused(kind, tokens, pause_s, turnover_s, keeps=keeps) for keeps in (True, False)
            )
            yield Row(
                commit=at_commit,
                kind=kind,
                tokens=tokens,
                pause_s=pause_s,
                turnover_s=turnover_s,
                beginnings=len(kept.found),
                kept=sum(kept.found.values()),
                not_kept=sum(without.found.values()),
                touches=kept.touches,
                touched_tokens=kept.touched_tokens,
            )


def review(kind: str, tokens: int) -> tuple[flow.Flow, Functions]:
    functions = Functions()
    wait = functions.pure(_unchanged)
    f = flow.Flow("review", max_tokens=60, on_cut="keep", functions=functions)
    row = f.input("row")
    said: Any = row["q"]
    for at, role in enumerate(ROLES):
        said = f.llm(
            role, "{{ row.q }}: {{ said }}", system=words(role, tokens), row=row, said=said
        )
        if at == 0 and kind != KINDS[0]:
            said = f.call("tool", wait, text=said)
    f.output("said", said)
    return f, functions


def _unchanged(text: str) -> str:
    return text


class BesideOthers(FlowClient):
    """A client of a flow, while others ask long prompts. `keeps`: beginnings in pauses."""

    every_us, until_us, keeps = SECOND, 0, True

    def begin_others(self) -> None:
        self._clock.call_at(self._clock.now(), partial(self._ask, 0))

    def _ask(self, number: int) -> None:
        if self.ended is None:
            body = beginning([("user", words(f"other {number}", _OTHERS_TOKENS))])
            self._touch(TouchPrefix("other", None, body))
            self._clock.call_at(self._clock.now() + self.every_us, partial(self._ask, number + 1))

    def _look(self, calls: int) -> None:
        if self.keeps:
            super()._look(calls)


class Paused:
    """A run with pauses. `found`: by pause and role, whether no call computed its beginning."""

    def __init__(
        self, kind: str, tokens: int, pause_s: int, turnover_s: int, *, keeps: bool
    ) -> None:
        self.found: dict[tuple[int, str], bool] = {}
        self.touches = self.touched_tokens = 0
        f, functions = review(kind, tokens)
        plan = f.compile(flow.Passes(cached=False, prefill=False, order=False))
        self._tokens = {
            name: each.tokens for each in plan.static_prefixes for name in each.operators
        }
        rows = [{"q": f"question {n}"} for n in range(BATCHES * BATCH)]
        self._late = kind == KINDS[0]

        def client(clock: VirtualClock, feed: Feed) -> FlowClient:
            made = BesideOthers(
                plan,
                FlowLimits(capacity=ENGINE.max_num_seqs, kv_tokens=ENGINE.kv_tokens),
                iter(rows),
                functions_runner(functions),
                clock,
                feed,
                arrives_at=lambda n: (n // BATCH + 1) * pause_s * SECOND if self._late else 0,
                around=Surroundings(function_us=pause_s * SECOND),
            )
            made.keeps = keeps
            made.every_us = turnover_s * SECOND * _OTHERS_TOKENS // ENGINE.kv_tokens
            made.begin_others()
            return made

        World(
            (),
            {"engine-0": ENGINE},
            POLICIES["kairos"],
            PLACEMENTS["kairos"],
            observers=(self._see,),
            clients=client,
        ).run()

    def _see(self, record: Record) -> None:
        event = record.event
        if not isinstance(event, Finished):
            return
        prompt_tokens, cached_tokens = event.prompt_tokens or 0, event.cached_tokens or 0
        if event.request_id.startswith("touch"):
            if prompt_tokens < _OTHERS_TOKENS - 500:
                self.touches += 1
                self.touched_tokens += prompt_tokens - cached_tokens
            return
        workflow, operator, _ = event.request_id.split("/")
        pause = int(workflow.partition(".")[2]) // BATCH if self._late else 0
        size = ENGINE.block_size
        whole = self._tokens[operator] // size * size
        if self._late or operator != ROLES[0]:
            at = pause, operator
            self.found[at] = self.found.get(at, True) and cached_tokens >= whole


def section(rows: Sequence[Row]) -> str:
    lines = []
    groups = sorted({(row.kind, row.tokens) for row in rows})
    for kind, tokens in groups:
        of = [row for row in rows if (row.kind, row.tokens) == (kind, tokens)]
        asked = sum(row.beginnings for row in of)
        lines.append(
            [
                f"{kind}, {tokens:,} tokens",
                str(len(of)),
                str(asked),
                f"{100 * sum(row.not_kept for row in of) / asked:.0f} %",
                f"{100 * sum(row.kept for row in of) / asked:.0f} %",
                f"{sum(row.touches for row in of) / asked:.1f}",
                f"{sum(row.touched_tokens for row in of) / asked:.0f}",
            ]
        )
    heads = ["flows", "beginnings", "found, not kept", "found", "touches each", "tokens each"]
    return table(["after pauses", *heads], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    asked, found = sum(row.beginnings for row in rows), sum(row.kept for row in rows)
    name, unit = "static beginnings found after pauses", "% of the first calls"
    return [
        Figure(
            name=name, value=round(100 * found / asked, 1), unit=unit, target=80, better="higher"
        )
    ]


STUDY = Study(
    title="Static beginnings after pauses",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
