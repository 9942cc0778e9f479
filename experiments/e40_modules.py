"""Teola's applications: modules that follow each other, beside what overlaps of them.

Teola's headline is 2.09 times at best. Expected: for one query, at least 1.8 times a chain of
modules where answers have up to 10 tokens, and 1.6 times at 20. That comes out over a chain whose
engines take batches of 4, the paper's own picture of it (figure 4); over one whose engines batch
as efficiently as ours it is less. No more than 5 % above the longest way through what needs what,
where nothing is shared; planning takes no more than 3 % of the time. What bounds it: indexing,
rerank and the answers follow each other, so at 200 tokens little is left to gain.
`retrieval_runs.py` says what is run, with which timings.

All give the same answers, which is checked. Under load all wait for the same embedder.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.grids import around
from experiments.report import commit
from experiments.retrieval_runs import ALL, CHAIN, MODULES, SMALL, SYSTEMS, Outcome, Run, run
from kairos.core import Interval

AIMS = {(5, 10): 1.8, (20,): 1.6}  # times, by the tokens of an answer
MOST_OVER_PATH, MOST_PLANNING = 1.05, 0.03
SEEDS, QUICK_SEEDS = 5, 2
TOKENS = (5, 10, 20, 40, 200)
CHUNKS: Mapping[str, tuple[int, ...]] = {
    "naive_rag": (16, 32, 48, 96),
    "advanced_rag": (16, 32, 48, 96),
    "contextual_retrieval": (6, 12),  # the model reads all of a document
    "web_search": (1,),
}
LOADED = ("naive_rag", "advanced_rag")
RATES = (0.1, 0.3, 0.6)
QUERIES = 30


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """See `retrieval_runs.Outcome`."""

    commit: str
    run: Run
    latency_s: float
    path_s: float
    planning_s: float
    calls: int


def measure(quick: bool) -> Iterator[Row]:
    """Raises AssertionError: a system gave other answers than the chain."""
    at_commit = commit()
    for base in cases(quick):
        chain: Outcome | None = None
        for system in SYSTEMS:
            asked = replace(base, system=system)
            found = run(asked)
            chain = chain or found
            assert found.answers == chain.answers, asked
            yield Row(
                commit=at_commit,
                run=asked,
                latency_s=found.latency_s,
                path_s=found.path_s,
                planning_s=found.planning_s,
                calls=found.calls,
            )


def cases(quick: bool) -> Iterator[Run]:
    """Of the chain."""
    for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
        for app in MODULES:
            for chunks in CHUNKS[app][:1] if quick else CHUNKS[app]:
                for tokens in TOKENS[1:3] if quick else TOKENS:
                    yield Run(app=app, system=CHAIN, chunks=chunks, answer_tokens=tokens, seed=seed)
        for app in LOADED:
            for rate in RATES[:1] if quick else RATES:
                count = 3 if quick else QUERIES
                yield Run(app=app, system=CHAIN, seed=seed, queries=count, rate_per_s=rate)


class Results:
    """Rows by what was run."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {each.run: each for each in rows}
        # Of each case that has both, but for the seed: the chain's.
        self.cases = list(dict.fromkeys(replace(e.run, system=CHAIN, seed=0) for e in rows))

    def of(self, case: Run, system: str) -> dict[int, Row]:
        """By seed."""
        return {
            asked.seed: row
            for asked, row in self._rows.items()
            if replace(asked, system=CHAIN, seed=0) == case and asked.system == system
        }

    def speedup(self, case: Run, system: str, over: str = CHAIN) -> Interval:
        """Over the chain, seed by seed."""
        chain, ours = self.of(case, over), self.of(case, system)
        return around([chain[seed].latency_s / ours[seed].latency_s for seed in sorted(ours)])

    def over_path(self, case: Run) -> Interval:
        """Kairos over the longest way, with the times that things take alone: the chain's."""
        chain, ours = self.of(case, CHAIN), self.of(case, ALL)
        return around([ours[seed].latency_s / chain[seed].path_s for seed in sorted(ours)])

    def planning(self, case: Run) -> Interval:
        """The share of planning in the time of a query."""
        return around([e.planning_s / e.latency_s for e in self.of(case, ALL).values()])

    def best(self, tokens: Collection[int], over: str) -> tuple[Run, Interval]:
        """Of answers of so many tokens, where Kairos gains most on one query."""
        alone = [e for e in self.cases if e.rate_per_s is None and e.answer_tokens in tokens]
        best = max(alone, key=lambda each: self.speedup(each, ALL, over).mean)
        return best, self.speedup(best, ALL, over)


def section(rows: Sequence[Row]) -> str:
    found = Results(rows)
    alone = [each for each in found.cases if each.rate_per_s is None]
    loaded = [each for each in found.cases if each.rate_per_s is not None]
    others = [each for each in SYSTEMS if each != CHAIN]
    parts = [
        "One query. The chain's seconds, and how many times as fast the others are, each pass "
        "alone; bold: Kairos where it is as fast as is aimed for. Last, Kairos over the longest "
        "way through what needs what.\n\n"
        + table(
            ["application, passages, tokens", "chain, s", *others, "over the longest way"],
            [[_named(each), *_line(found, each), _shown(found.over_path(each))] for each in alone],
        )
    ]
    if loaded:
        parts.append(
            "Many queries, of 48 passages and 20 tokens, at the rates at which they come.\n\n"
            + table(
                ["application, rate", "chain, s", *others],
                [[f"{e.app}, {e.rate_per_s:g}/s", *_line(found, e)] for e in loaded],
            )
        )
    return "\n\n".join(parts)


def _named(case: Run) -> str:
    return f"{case.app}, {case.chunks}, {case.answer_tokens}"


def _line(found: Results, case: Run) -> list[str]:
    chain = around([each.latency_s for each in found.of(case, CHAIN).values()])
    aims = [aim for tokens, aim in AIMS.items() if case.answer_tokens in tokens]
    aim = aims[0] if aims and case.rate_per_s is None else None
    line = [f"{chain.mean:.2f}"]
    for system in SYSTEMS:
        if system != CHAIN:
            gain = found.speedup(case, system)
            is_met = system == ALL and aim is not None and gain.mean >= aim
            line.append(f"**{_shown(gain)}**" if is_met else f"{gain.mean:.2f}")
    return line


def _shown(of: Interval) -> str:
    return f"{of.mean:.2f} [{of.low:.2f}, {of.high:.2f}]"


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = Results(rows)
    alone = [each for each in found.cases if each.rate_per_s is None]
    made = []
    for (tokens, aim), over in product(AIMS.items(), (CHAIN, SMALL)):
        case, gain = found.best(tokens, over)
        such = [each for each in alone if each.answer_tokens in tokens]
        by = {_named(each): found.speedup(each, ALL, over).mean for each in such}
        made.append(
            Figure(
                name=f"e40 {over}, over Kairos: answers of {max(tokens)} tokens, at best",
                value=gain.mean,
                unit="times as long",
                target=aim,
                better="higher",
                detail={"case": _named(case), "by": by},
            )
        )
    path = {_named(each): found.over_path(each).mean for each in alone}
    planning = {_named(each): found.planning(each).mean for each in alone}
    for name, of, most in (
        ("e40 Kairos over the longest way, at worst", path, MOST_OVER_PATH),
        ("e40 planning, of the time of a query, at worst", planning, MOST_PLANNING),
    ):
        made.append(
            Figure(
                name=name,
                value=max(of.values()),
                unit="times",
                target=most,
                better="lower",
                detail=of,
            )
        )
    return made


STUDY = Study(
    title="Applications made of modules",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
