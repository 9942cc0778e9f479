"""`python -m experiments.lead_vllm`: what it gains to send an engine more calls than it runs.

Claim: next to nothing, so Kairos sends none (a lead of 0). While a call waits in Kairos and not in
the engine, a sequence that ends stays free for the round trip until the next is there: HTTP, a
decision, and the rest of a step. A lead would hide that; but what waits inside the engine is in the
engine's order, and nobody with less work left can go before it any more.

Two vLLM instances on CPU with room for all, that run `SEQS` sequences at once, so that there is
always something to send; the lead is what Kairos is told that they run beyond that. Workflows,
instants and model as in the short form of `placements_vllm.py`; in each repetition the leads run in
a random order, and intervals are of the differences to none, within repetitions.

Takes nine minutes, and the machine for itself. Adds its figures to report.json; with fewer
repetitions, nothing.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.report import Figure
from experiments.command import ending
from experiments.fidelity_engines import Limits, engines
from experiments.fidelity_real import check, serving
from experiments.placements_vllm import QUICK, RATE_PER_S, in_turn
from experiments.placements_vllm_run import replay
from experiments.placements_vllm_workload import offered
from experiments.report import add_figures
from kairos.core import Interval, mean_interval

SEQS = 4
LIMITS = Limits(kv_blocks=400, max_num_seqs=SEQS, max_num_batched_tokens=2048, max_model_len=768)
WORKFLOWS = 40
LEADS = (0, 1, 2, 4)
REPETITIONS = 12
MEASURES = {"until all had ended": "elapsed", "mean end-to-end latency": "mean"}

Times = dict[int, list[dict[str, float]]]  # by lead, of each repetition, in seconds


async def measure(repetitions: int, console: Console) -> Times:
    began_at, found = time.monotonic(), Times({lead: [] for lead in LEADS})

    def tell(line: str) -> None:
        console.print(f"{time.monotonic() - began_at:5.0f} s  {line}", highlight=False)

    async with engines(LIMITS, tell, model=QUICK.model) as urls:
        await run(urls, 0, 0)  # engines are slower at first
        for repetition in range(1, repetitions + 1):
            for lead in in_turn(LEADS, repetition):
                found[lead].append(await run(urls, lead, repetition))
                took = found[lead][-1]
                shown = ", ".join(f"{name} {took[key]:.2f} s" for name, key in MEASURES.items())
                tell(f"repetition {repetition} of {repetitions}, lead {lead}: {shown}")
    return found


async def run(urls: Sequence[str], lead: int, repetition: int) -> dict[str, float]:
    options = [f"--engine={url},max_num_seqs={SEQS + lead}" for url in urls]
    async with serving(options, len(urls)) as (_, url):
        played = await replay(url, offered(WORKFLOWS, RATE_PER_S, repetition))
    check(played)
    return {"elapsed": played.elapsed_s, "mean": played.metrics["e2e_s"]["mean"]}


def ratios(found: Times, lead: int, key: str) -> Interval | None:
    """To no lead, with 95 % intervals."""
    pairs = zip(found[lead], found[0], strict=True)
    return mean_interval([each[key] / none[key] for each, none in pairs])


def figures(found: Times) -> list[Figure]:
    return [
        Figure(
            name=f"real vLLM, {name}, a lead of {lead} over none",
            value=round(ratio.mean, 4),
            unit="ratio",
            target=None,
            detail={
                "repetitions": len(found[0]),
                "95 %": [round(ratio.low, 4), round(ratio.high, 4)],
            },
        )
        for lead in LEADS[1:]
        for name, key in MEASURES.items()
        if (ratio := ratios(found, lead, key)) is not None
    ]


def table(found: Times) -> Table:
    made = Table(title=f"calls beyond the {SEQS} that an engine runs; ratios to none, 95 %")
    for heading in ("lead", *MEASURES):
        made.add_column(heading, justify="right")
    for lead in LEADS[1:]:
        made.add_row(str(lead), *(_shown(ratios(found, lead, key)) for key in MEASURES.values()))
    return made


def _shown(ratio: Interval | None) -> str:
    return "" if ratio is None else f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a lead gains: calls that wait in an engine.")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help=f"of all leads [{REPETITIONS}]"
    )
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = 140
    with ending("lead_vllm"):
        found = asyncio.run(measure(options.repetitions, console))
    console.print(table(found))
    if options.repetitions >= REPETITIONS:
        add_figures(figures(found))


if __name__ == "__main__":
    main()
