"""How much a poisoned tenant slows an honest one, against an honest neighbour with the same number
of calls: `python -m bench.poisoned`, half an hour.

First in virtual time (`poisoned_pool.py`): what is decided beside a tenant that made up a million
names, whose workflows fan out and are cancelled. Nothing is measured of this machine there. Then
over HTTP (`poisoned_service.py`): what it costs the service. In brackets the lowest and the highest
seed, or round; `fans out`: beside an honest neighbour whose workflows are as wide as the poisoned
one's. So what the poison itself does is the rest.
"""

import statistics
from collections.abc import Sequence
from statistics import fmean

from rich.console import Console

from bench import poisoned_service
from bench.command import Bench
from bench.fairness import engine, p99, spread
from bench.poisoned_pool import Other, SharedPool, Work
from bench.poisoned_service import Kind, Measured
from bench.report import Figure
from bench.systems import take_core

NAMES, QUICK_NAMES = 1_000_000, 10_000
ENGINE, TOKEN_S, SEQUENCES = engine(8, 20_000, 40_000), 0.04, 16  # of both instances
LOAD = 0.7  # of all sequences, by both tenants
PER_S, SECONDS, BEFORE_S, ROUNDS = 150.0, 15.0, 20.0, 5  # over HTTP
SLOWER = 1.10  # times

WORKFLOWS = "an honest tenant's workflows beside a poisoned one, over beside a neighbour"
TAIL = "the same at the 99th percentile"


def decided(seeds: range, seconds: float, names: int, console: Console) -> list[Figure]:
    """Mean and tail of honest workflows, over those beside a neighbour like itself."""
    work = Work(per_s=1.0)
    call_s = TOKEN_S * sum(work.answer) / 2
    work = Work(per_s=LOAD / 2 * SEQUENCES / call_s)
    means: dict[Other, list[float]] = {"fans out": [], "poisoned": []}
    tails: dict[Other, list[float]] = {"fans out": [], "poisoned": []}
    for seed in seeds:
        alike = SharedPool(work, ENGINE, "neighbour", seed).play(seconds, 0).latencies_s
        for kind, found in means.items():
            beside = SharedPool(work, ENGINE, kind, seed).play(seconds, names).latencies_s
            found.append(fmean(beside) / fmean(alike))
            tails[kind].append(p99(beside) / p99(alike))
        console.print(f"seed {seed}: {means['poisoned'][-1]:.3f} times", style="dim")
    return [
        Figure(
            name=WORKFLOWS,
            value=round(fmean(means["poisoned"]), 3),
            unit="times",
            target=SLOWER,
            detail={kind: spread(found, 3) for kind, found in means.items()},
        ),
        Figure(
            name=TAIL,
            value=round(fmean(tails["poisoned"]), 3),
            unit="times",
            target=None,
            detail={kind: spread(found, 3) for kind, found in tails.items()},
        ),
    ]


async def served(rounds: int, seconds: float, before_s: float, console: Console) -> list[Figure]:
    cores = take_core(console)
    found: dict[Kind, list[Measured]] = {"neighbour": [], "poisoned": []}
    for number in range(rounds):
        for kind in sorted(found, reverse=bool(number % 2)):  # they take turns at going first
            made = await poisoned_service.beside(kind, cores, PER_S, seconds, before_s)
            found[kind].append(made)
    return [
        _figure("an honest tenant's calls over HTTP, in the mean", found, "mean_ms", "ms"),
        _figure(
            "an honest tenant's calls over HTTP, at the 99th percentile", found, "p99_ms", "ms"
        ),
        _figure("the service's CPU time for a call of either", found, "cpu_us", "us"),
    ]


def _figure(name: str, found: dict[Kind, list[Measured]], field: str, unit: str) -> Figure:
    """The median of the rounds' ratios."""
    values: dict[Kind, Sequence[float]] = {
        kind: [getattr(each, field) for each in rounds] for kind, rounds in found.items()
    }
    pairs = zip(values["poisoned"], values["neighbour"], strict=True)
    return Figure(
        name=f"{name}: beside a poisoned one, over beside a neighbour",
        value=round(statistics.median(one / other for one, other in pairs), 3),
        unit="times",
        target=SLOWER if field == "mean_ms" else None,
        detail={kind: spread([*each], 1) for kind, each in values.items()} | {"of": unit},
    )


async def measure(console: Console, quick: bool) -> list[Figure]:
    seeds, seconds, names = (range(1), 300.0, QUICK_NAMES) if quick else (range(3), 7200.0, NAMES)
    rounds = (1, 4.0, 2.0) if quick else (ROUNDS, SECONDS, BEFORE_S)
    of_calls = await served(*rounds, console)
    return [*decided(seeds, seconds, names, console), *of_calls]


if __name__ == "__main__":
    columns = {"neighbour": "neighbour", "fans out": "fans out", "poisoned": "poisoned"}
    Bench("poisoned", __doc__, columns, "one seed, one round, few names").of_servers(measure)
