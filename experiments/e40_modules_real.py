"""Applications made of modules, on real models.

Expected: what Kairos overlaps ends earlier than the chain of modules in at least 95 % of 40 pairs,
with the same answer. Each pair is a question about reports of TAT-QA, put to the flow of
`make rag-demo` as it is declared, a chain, and as Kairos runs it, in turn as to which goes first.
MiniLM embeds, on llama.cpp. A model answers: of random weights on vLLM, or SmolLM2 on llama.cpp;
nothing is in its cache when a run begins. The passages of the pair's own reports are indexed by the
run, and searched exactly in memory; what the question says in other words is searched in LanceDB,
among the passages of all reports that the pairs are about.

What LanceDB has was put there before, and is in nobody's time: to put passages into a collection
that stays is an effect, so a chain that does it would overlap nothing that comes after. What may
overlap: indexing and searching the reports beside the call that says the question in other words,
the embedding of each of these beside the rest of them, and beginnings of prompts.

`python -m experiments.modules_real` measures this (`experiments/modules_real.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from bench.report import Figure
from experiments.claim import Study, table

PAIRS, AIM = 40, 0.95
EngineKind = Literal["llama", "vllm"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A pair: what both took, and whether they said the same."""

    commit: str
    date: str
    engine: EngineKind
    pair: int  # from 1: which question; of even ones the chain goes last
    chain_s: float
    kairos_s: float
    is_same: bool


def share_faster(rows: Sequence[Row]) -> float:
    return sum(row.kairos_s < row.chain_s for row in rows) / len(rows)


def times_as_fast(rows: Sequence[Row]) -> float:
    return sum(row.chain_s for row in rows) / sum(row.kairos_s for row in rows)


def by_engine(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for engine in dict.fromkeys(row.engine for row in rows):
        yield engine, [row for row in rows if row.engine == engine]


def section(rows: Sequence[Row]) -> str:
    lines = [
        [
            engine,
            f"{len(of)}",
            f"{sum(row.kairos_s < row.chain_s for row in of)}",
            f"{sum(row.chain_s for row in of) / len(of):.2f}",
            f"{sum(row.kairos_s for row in of) / len(of):.2f}",
            f"{times_as_fast(of):.2f}",
            f"{min(row.chain_s / row.kairos_s for row in of):.2f}",
            f"{sum(not row.is_same for row in of)}",
        ]
        for engine, of in by_engine(rows)
    ]
    header = ["engine", "pairs", "faster", "chain, s", "Kairos, s"]
    header += ["times as fast", "at least", "other answers"]
    made = ", ".join(sorted({f"commit {row.commit}, {row.date}" for row in rows}))
    return f"Aim: faster in {AIM:.0%} of {PAIRS}.\n\n{table(header, lines)}\n\nOf {made}."


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Of engines whose pairs are all there."""
    return [
        Figure(
            name=f"modules that overlap, on real models ({engine}): pairs that end earlier",
            value=round(share_faster(of), 4),
            unit="share",
            target=AIM,
            better="higher",
            detail={
                "pairs": len(of),
                "times as fast": round(times_as_fast(of), 3),
                "other answers": sum(not row.is_same for row in of),
            },
        )
        for engine, of in by_engine(rows)
        if len(of) >= PAIRS
    ]


STUDY = Study(
    title="Applications made of modules, on real models",
    row=Row,
    measure=None,
    section=section,
    figures=figures,
)
