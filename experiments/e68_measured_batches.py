"""Measure how near the efficient batch that is measured comes to the best, and what 16 gives.

Engines are drawn: a fixed time for a batch, some for each round of items that run together, and a
limit of items. `kairos/workflows/start/flow_measured.py` measures batches of 1, 2, 4 ... items of
each, in virtual time. Throughput is compared with that of the best of all sizes.
Left out: costs by the length of texts, and noise. Seconds of one core.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.report import commit
from kairos.core import InvalidRequest
from kairos.workflows.compile.batches import efficient_size
from kairos.workflows.start.flow_measured import MOST_ITEMS, curve

USUAL = 16
ENGINES = (1_000, 100)
FIXED = ((0.1, 1.0), (1.0, 30.0), (30.0, 1_000.0))  # times of an item that a batch takes anyway


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An engine, with its throughput as a share of the best."""

    commit: str
    fixed: float  # times of an item
    lanes: int
    room: int
    chosen: int
    share: float  # of the best throughput, with the chosen batch
    usual_share: float  # with batches of 16
    longer: float  # a batch takes as many times as long as one of 16


class _Engine:
    def __init__(self, fixed: float, lanes: int, room: int) -> None:
        self.fixed, self.lanes, self.room = fixed, lanes, room
        self.at = 0.0

    def batch(self, items: int) -> float:
        return self.fixed + -(-items // self.lanes)

    def throughput(self, items: int) -> float:
        return items / self.batch(items)

    async def ask(self, items: int) -> None:
        if items > self.room:
            raise InvalidRequest("too many items")
        self.at += self.batch(items)

    def clock(self) -> float:
        return self.at / 1e4  # an item takes a tenth of a millisecond


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    dice = random.Random(68)  # noqa: S311 - costs of a simulation
    for low, high in FIXED:
        for _ in range(ENGINES[quick] // len(FIXED)):
            fixed = low * (high / low) ** dice.random()
            lanes, room = dice.choice((1, 1, 4, 16, 64)), dice.choice((MOST_ITEMS, 200, 30, 8))
            engine = _Engine(fixed, lanes, room)
            chosen = efficient_size(asyncio.run(curve(engine.ask, clock=engine.clock)))
            best = max(engine.throughput(items) for items in range(1, room + 1))
            usual = min(USUAL, room)
            yield Row(
                commit=at_commit,
                fixed=fixed,
                lanes=lanes,
                room=room,
                chosen=chosen,
                share=engine.throughput(chosen) / best,
                usual_share=engine.throughput(usual) / best,
                longer=engine.batch(chosen) / engine.batch(usual),
            )


def section(rows: Sequence[Row]) -> str:
    heads = ["fixed time / item", "measured batch: of the best throughput", "at worst",
             "16: of the best", "at worst", "a batch takes, times as long"]  # fmt: skip
    lines = []
    for low, high in FIXED:
        found = [each for each in rows if low <= each.fixed <= high]
        lines.append(
            [
                f"{low:g} to {high:g}",
                f"{fmean(each.share for each in found):.0%}",
                f"{min(each.share for each in found):.0%}",
                f"{fmean(each.usual_share for each in found):.0%}",
                f"{min(each.usual_share for each in found):.0%}",
                f"{fmean(each.longer for each in found):.1f}",
            ]
        )
    return table(heads, lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    share = round(100 * fmean(each.share for each in rows), 1)
    usual = round(100 * fmean(each.usual_share for each in rows), 1)
    return [
        Figure(
            name="throughput of the measured batch, of the best",
            value=share,
            unit="%",
            target=90.0,
            better="higher",
        ),
        Figure(
            name="throughput of batches of 16, of the best",
            value=usual,
            unit="%",
            target=None,
            better="higher",
        ),
    ]


STUDY = Study(
    title="The efficient batch, measured",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
