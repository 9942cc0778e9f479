"""Measure whether an embedder that is free should wait for more texts before it begins a batch.

Texts of queries arrive (Poisson) at one engine, which takes a fixed time for a batch and some for
each text, 16 texts at most. A window of none, a quarter, a half or all of the fixed time is waited
before a batch begins that is not full. Halo's mini-batches are such windows. The queue is Kairos'
own (`workflows/execute/batching.py`). Expected: no window is worth its wait, since what arrives
while the engine computes makes a batch anyway.
Left out: engines that others use, too, and what a text costs by its length. Seconds of one core.
"""

import random
from collections.abc import Iterator, Sequence
from statistics import fmean, quantiles

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.report import commit
from kairos.workflows import BatchQueue

BATCH = 16
FIXED_US = 10_000
EACH_US = (500, 2_000, 10_000)  # a text costs a twentieth of the fixed time, a fifth, or as much
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of what full batches keep up with
WINDOWS = (0.0, 0.25, 0.5, 1.0)  # of the fixed time
TEXTS, SEEDS = (20_000, 2_000), 5


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of one seed, from a text's arrival to the end of its batch."""

    commit: str
    each_us: int
    load: float
    window: float
    seed: int
    mean_us: float
    p99_us: float
    batch: float  # texts in one, on average


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for each_us in EACH_US:
        for load in LOADS:
            for window in WINDOWS:
                for seed in range(SEEDS):
                    took, batches = _run(each_us, load, window * FIXED_US, seed, TEXTS[quick])
                    yield Row(
                        commit=at_commit,
                        each_us=each_us,
                        load=load,
                        window=window,
                        seed=seed,
                        mean_us=fmean(took),
                        p99_us=quantiles(took, n=100)[98],
                        batch=len(took) / batches,
                    )


def _run(
    each_us: int, load: float, window_us: float, seed: int, count: int
) -> tuple[list[float], int]:
    """Return how long each text took, and the number of batches."""
    dice = random.Random(seed)  # noqa: S311 - arrivals of a simulation
    gap_us = (FIXED_US + BATCH * each_us) / BATCH / load
    arrivals, at = [], 0.0
    for _ in range(count):
        at += dice.expovariate(1 / gap_us)
        arrivals.append(at)
    queue, waiting = BatchQueue(), dict[int, float]()
    took, batches, free_at, nxt = list[float](), 0, 0.0, 0

    def arrive() -> None:
        nonlocal nxt
        waiting[queue.add((nxt,), 1, 1)] = arrivals[nxt]
        nxt += 1

    while nxt < count or waiting:
        if not waiting:
            arrive()
        first = min(waiting.values())
        begins = max(free_at, first)
        while nxt < count and arrivals[nxt] <= begins:
            arrive()
        due = max(begins, first + window_us)
        while len(waiting) < BATCH and nxt < count and arrivals[nxt] <= due:
            begins = max(begins, arrivals[nxt])
            arrive()
        if len(waiting) < BATCH:
            begins = due
        shares = queue.take(BATCH)
        free_at = begins + FIXED_US + each_us * len(shares)
        took += [free_at - waiting.pop(share.id) for share in shares]
        batches += 1
    return took, batches


def section(rows: Sequence[Row]) -> str:
    heads = ["a text / fixed", "load"]
    for window in WINDOWS:
        heads += [f"window {window:g}: mean, ms", "P99, ms", "texts in a batch"]
    lines = []
    for each_us in EACH_US:
        for load in LOADS:
            line = [f"{each_us / FIXED_US:g}", f"{load:g}"]
            for window in WINDOWS:
                found = [
                    e for e in rows if (e.each_us, e.load, e.window) == (each_us, load, window)
                ]
                line += [
                    f"{fmean(e.mean_us for e in found) / 1000:.1f}",
                    f"{fmean(e.p99_us for e in found) / 1000:.1f}",
                    f"{fmean(e.batch for e in found):.1f}",
                ]
            lines.append(line)
    return table(heads, lines)


def gain(rows: Sequence[Row]) -> float:
    """Return by how much the best window shortens the mean at its best, in %."""
    means: dict[tuple[int, float], dict[float, float]] = {}
    for each_us in EACH_US:
        for load in LOADS:
            means[each_us, load] = {
                window: fmean(
                    e.mean_us
                    for e in rows
                    if (e.each_us, e.load, e.window) == (each_us, load, window)
                )
                for window in WINDOWS
            }
    return max(100 * (1 - min(each.values()) / each[0.0]) for each in means.values())


def figures(rows: Sequence[Row]) -> list[Figure]:
    saved = round(gain(rows), 1)
    return [Figure(name="mean saved by a window at its best", value=saved, unit="%", target=0.0)]


STUDY = Study(
    title="Mini-batches of queries online",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
