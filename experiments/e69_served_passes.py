"""Measure what each pass gives to flows that are served, query by query.

A served flow is planned for one row: without `order`, which is for batches of rows, and with
`cached` where invocations share results. What `touch` gives stands in `e71_served_prefixes`. Each
other pass is left out in turn, of flows declared as chains of modules, one query alone and queries
at a rate. No query repeats another one, so `cached` and `cse` gain only within a query. Times are
as in `retrieval_runs.py`.
Expected: no pass makes queries slower; `identities` and `prune` give nothing to flows that are
written by hand. Left out: other loads, and queries that repeat. A minute of one core.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.report import commit
from experiments.retrieval_runs import ALL, MODULES, Run, run
from kairos.workflows import Passes

SERVED = Passes(touch=False, order=False)
LEFT_OUT = ("identities", "prune", "dependencies", "cse", "stages", "prefill", "cached", "decoding")
RATES = (None, 0.2)
PASSAGES = {"contextual_retrieval": 6, "web_search": 1}  # of a query; else 32
SEEDS, QUERIES = (3, 1), (16, 4)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Queries of one application, with and without a pass."""

    commit: str
    app: str
    rate_per_s: float | None
    seed: int
    without: str
    latency_s: float
    usual_s: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for app in MODULES:
        for rate in RATES:
            for seed in range(1, 1 + SEEDS[quick]):
                queries = 1 if rate is None else QUERIES[quick]
                asked = Run(
                    app=app,
                    system=ALL,
                    chunks=PASSAGES.get(app, 32),
                    seed=seed,
                    queries=queries,
                    rate_per_s=rate,
                )
                usual = run(asked, SERVED)
                for name in LEFT_OUT:
                    found = run(asked, msgspec.structs.replace(SERVED, **{name: False}))
                    assert found.answers == usual.answers, (app, name)
                    yield Row(
                        commit=at_commit,
                        app=app,
                        rate_per_s=rate,
                        seed=seed,
                        without=name,
                        latency_s=found.latency_s,
                        usual_s=usual.latency_s,
                    )


def _gains(rows: Sequence[Row], name: str) -> Mapping[tuple[str, float | None], float]:
    """Return by application and rate how much shorter a query is with the pass, in %."""
    found: dict[tuple[str, float | None], list[float]] = {}
    for each in rows:
        if each.without == name:
            gain = 100 * (1 - each.usual_s / each.latency_s)
            found.setdefault((each.app, each.rate_per_s), []).append(gain)
    return {case: fmean(gains) for case, gains in found.items()}


def section(rows: Sequence[Row]) -> str:
    cases = sorted({(e.app, e.rate_per_s) for e in rows}, key=lambda e: (e[0], e[1] or 0))
    heads = ["shorter with the pass", *(f"{app}, {rate or 'alone'}" for app, rate in cases)]
    lines = []
    for name in LEFT_OUT:
        gains = _gains(rows, name)
        lines.append([name, *(f"{gains[case]:.1f} %" for case in cases)])
    return table(heads, lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure(
            name=f"time of a query that {name} saves, at worst",
            value=round(min(_gains(rows, name).values()), 1),
            unit="%",
            target=-1.0,
            better="higher",
        )
        for name in LEFT_OUT
    ]


STUDY = Study(
    title="Passes of flows that are served",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
