"""`python -m experiments.batch_vllm`: a batch of documents beside online agents, on two real vLLM.

What is claimed and run: `e46_batch_real.py`. Each engine has a core, so it wants the machine for
itself; it takes a quarter of an hour. Rows are kept as each run ends, in
results/e46_batch_real.jsonl; what was broken off goes on where it was, at the same commit.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import openai
from rich.console import Console

from experiments.command import ending
from experiments.e46_batch_real import BESIDE, REPETITIONS, STUDY, Beside, Row, figures, section
from experiments.fidelity_engines import Limits, engines
from experiments.fidelity_real import check, serving
from experiments.placements_vllm import in_turn
from experiments.placements_vllm_run import POLICY, learnt_of, replay, serve_options
from experiments.placements_vllm_workload import offered
from experiments.report import add_figures, commit, write_rows
from experiments.sections import read_rows, rows_file
from kairos.core import Header
from kairos.settings import Settings
from kairos.simulate.workload.workflows import Submission

NAME = "e46_batch_real"
MODEL = "tiny"
LIMITS = Limits(kv_blocks=400, max_num_batched_tokens=2048, max_model_len=768)
WORKFLOWS, RATE_PER_S = 24, 0.5
LEARNT_OF, LEARNT_RATE_PER_S = 1000, 4.0  # the repetition of which all learn before
# As ordinary calls all may be done before the agents are; each has so many words, and tokens of an
# answer.
LINES, LINE_WORDS, LINE_TOKENS = 2_500, 120, 48
BEGUN_S = 5.0  # of the batch alone, before the first workflow comes
PLACEMENT = Settings().placement


def lines() -> bytes:
    """The input of the batch."""
    asked = {"model": MODEL, "max_tokens": LINE_TOKENS, "ignore_eos": True}
    return "\n".join(
        json.dumps(
            {
                "custom_id": f"doc-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": asked
                | {"prompt": f"{number}: " + "growth of revenue " * (LINE_WORDS // 3)},
            }
        )
        for number in range(LINES)
    ).encode()


async def begin(client: openai.AsyncOpenAI, service_class: str) -> str:
    """A batch, which has the engines for itself for a while; its name."""
    file = await client.files.create(file=("documents.jsonl", lines()), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/completions",
        completion_window="24h",
        extra_headers={Header.CLASS: service_class},
    )
    await asyncio.sleep(BEGUN_S)
    return batch.id


async def done(client: openai.AsyncOpenAI, batch: str) -> int:
    counts = (await client.batches.retrieve(batch)).request_counts
    assert counts is None or not counts.failed, "lines of the batch fail"
    return 0 if counts is None else counts.completed


async def run(
    urls: Sequence[str], learnt: bytes, submissions: Sequence[Submission], beside: Beside
) -> tuple[dict[str, float], int, float]:
    """What workflows took, how many lines were answered meanwhile, and how long that was.

    Raises:
        SetupError: Kairos did not start, or some workflow did not come to its end.
    """
    with tempfile.TemporaryDirectory() as directory:
        settings, kept = Path(directory) / "kairos.toml", Path(directory) / "learnt.json"
        settings.write_text(f'[batches]\ndirectory = "{directory}/batches"\n')
        kept.write_bytes(learnt)
        options = serve_options(urls, LIMITS.max_num_seqs, POLICY, PLACEMENT, kept)
        async with (
            serving([*options, f"--config={settings}"], len(urls)) as (_, url),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ):
            batch = None if beside == "nothing" else await begin(client, beside)
            before = 0 if batch is None else await done(client, batch)
            played = await replay(url, submissions)
            after = 0 if batch is None else await done(client, batch)
    check(played)
    return played.metrics["e2e_s"], after - before, played.elapsed_s


async def measure(repetitions: int, console: Console) -> list[Row]:
    """All rows that there are then. Those of another commit are measured again."""
    here = commit()
    rows = [row for row in read_rows(NAME, STUDY, quick=False) if row.commit == here]
    made = {(row.repetition, row.beside) for row in rows}
    numbers = range(1, repetitions + 1)
    todo = [(n, each) for n in numbers for each in in_turn(BESIDE, n) if (n, each) not in made]

    def tell(line: str) -> None:
        console.print(line, highlight=False)

    if not todo:
        return rows
    async with engines(LIMITS, tell, model=MODEL) as urls:
        before = offered(WORKFLOWS, LEARNT_RATE_PER_S, LEARNT_OF)
        learnt = await learnt_of(urls, LIMITS.max_num_seqs, before, PLACEMENT)
        for number, beside in todo:
            submissions = offered(WORKFLOWS, RATE_PER_S, number)
            e2e_s, answered, lasted_s = await run(urls, learnt, submissions, beside)
            row = Row(
                commit=here,
                date=datetime.now(UTC).date().isoformat(),
                repetition=number,
                beside=beside,
                workflows=len(submissions),
                mean_s=round(e2e_s["mean"], 4),
                p99_s=round(e2e_s["p99"], 4),
                lines=answered,
                lasted_s=round(lasted_s, 2),
            )
            rows.append(row)
            write_rows(rows_file(NAME, quick=False), rows)
            tell(
                f"repetition {number} of {repetitions}, beside {beside}: mean {row.mean_s:.2f} s, "
                f"P99 {row.p99_s:.2f} s, {answered} lines in {lasted_s:.0f} s"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="A batch beside agents, on two real vLLM.")
    parser.add_argument(
        "--repetitions", type=int, choices=range(1, REPETITIONS + 1), default=REPETITIONS
    )
    options = parser.parse_args()
    console = Console()
    with ending("batch_vllm"):
        rows = asyncio.run(measure(options.repetitions, console))
    console.print(section(rows), markup=False, highlight=False)
    add_figures(figures(rows))


if __name__ == "__main__":
    main()
