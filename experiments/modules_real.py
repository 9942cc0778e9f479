"""`python -m experiments.modules_real`: applications made of modules, on real models.

What is claimed and run: `e40_modules_real.py`. Each engine has a core, so it wants the machine for
itself. Rows are kept as each pair ends, in results/e40_modules_real.jsonl; a run that was broken
off goes on where it was, at the same commit. `--engine vllm` needs vLLM.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from examples.data import reports
from examples.rag_demo import FLOW, Servers, embedding_server, model_servers, run_row
from experiments.command import ending
from experiments.e40_modules_real import PAIRS, STUDY, EngineKind, Row, figures, section
from experiments.fidelity_engines import DEVELOPMENT, empty_caches
from experiments.report import add_figures, commit, write_rows
from experiments.sections import read_rows, rows_file
from kairos.cli.demos.engines import start_engines
from kairos.flow import Functions
from kairos.workflows import LoadedFlow, load_flow
from kairos.workflows.compile.operators import Reference, Search
from kairos.workflows.declare.yaml_file import read_yaml

NAME = "e40_modules_real"
TOGETHER = 4  # reports of which a document consists
_ARCHIVE = "archive"
_FILL = f"""
flow: fill_archive
operators:
  row: {{kind: input}}
  passages: {{kind: chunk, inputs: {{text: row.text}}}}
  vectors: {{kind: embed, inputs: {{texts: passages}}}}
  filled:
    kind: ingest
    inputs: {{texts: passages, vectors: vectors}}
    collection: {_ARCHIVE}
outputs: {{passages: filled.count}}
"""
Question = tuple[str, str]  # a document, and what is asked about it
Fresh = Callable[[], AbstractAsyncContextManager[Servers]]


def questions(source: Path | None) -> Iterator[Question]:
    left = reports(source)
    while of := list(islice(left, TOGETHER)):
        asked = [each["question"] for report in of for each in report["questions"]]
        if asked:
            yield "\n\n".join(report["text"] for report in of), asked[0]


def asking_archive() -> LoadedFlow:
    """The demo's flow, in which the question in other words is sought in the archive."""
    loaded, replace = load_flow(FLOW), msgspec.structs.replace
    operators = tuple(
        replace(
            each,
            params=Search(top_k=2, collection=_ARCHIVE),
            inputs={"vectors": Reference("asked")},
        )
        if each.name == "also_found"
        else each
        for each in loaded.declaration.operators
    )
    return LoadedFlow(replace(loaded.declaration, operators=operators), loaded.functions)


@asynccontextmanager
async def archive(documents: Sequence[str], console: Console) -> AsyncIterator[str]:
    """A directory of LanceDB with all passages. Raises SetupError: it cannot be filled."""
    with TemporaryDirectory() as directory:
        flow = LoadedFlow(read_yaml(_FILL, "fill_archive"), Functions())
        async with embedding_server() as embedder:
            servers = Servers(None, embedder, directory)
            row = {"text": "\n\n".join(documents)}
            filled = await run_row(flow, row, servers, as_chain=False, console=console)
        console.print(f"the archive has {filled.values['passages']} passages", highlight=False)
        yield directory


@asynccontextmanager
async def engines(kind: EngineKind) -> AsyncIterator[Fresh]:
    """What gives servers that have nothing in their caches. Raises SetupError: one does not
    start."""
    if kind == "llama":
        yield model_servers
        return
    os.environ |= DEVELOPMENT  # its children's: they can be told to forget
    options = ("--model", "small", "--number", "1")
    async with start_engines("vllm", 1, options=options) as (url,), embedding_server() as embedder:

        @asynccontextmanager
        async def emptied() -> AsyncIterator[Servers]:
            await empty_caches([url])
            yield Servers(url, embedder)

        yield emptied


async def run_pair(
    number: int, asked: Question, engine: EngineKind, fresh: Fresh, kept_in: str, console: Console
) -> Row:
    """The chain goes first where the number is odd. `kept_in`: where the archive is."""
    flow, (text, question), found = asking_archive(), asked, {}
    for as_chain in (True, False) if number % 2 else (False, True):
        async with fresh() as servers:
            found[as_chain] = await run_row(
                flow,
                {"question": question, "text": text},
                msgspec.structs.replace(servers, collections=kept_in),
                as_chain=as_chain,
                console=console,
            )
    chain, ours = found[True], found[False]
    return Row(
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
        engine=engine,
        pair=number,
        chain_s=round(chain.s, 4),
        kairos_s=round(ours.s, 4),
        is_same=chain.values == ours.values,
    )


def kept_rows(rows: Sequence[Row], engine: EngineKind) -> list[Row]:
    """Without those of this engine that are of another commit."""
    here = commit()
    return [row for row in rows if row.engine != engine or row.commit == here]


async def measure(
    pairs: int, engine: EngineKind, source: Path | None, console: Console
) -> list[Row]:
    """All rows that there are then."""
    path = rows_file(NAME, quick=False)
    rows = kept_rows(read_rows(NAME, STUDY, quick=False), engine)
    made = {row.pair for row in rows if row.engine == engine}
    asked = list(islice(questions(source), PAIRS))
    todo = [number for number in range(1, pairs + 1) if number not in made]
    if not todo:
        return rows
    async with archive([text for text, _ in asked], console) as kept_in, engines(engine) as fresh:
        for number in todo:
            row = await run_pair(number, asked[number - 1], engine, fresh, kept_in, console)
            rows.append(row)
            write_rows(path, rows)
            said = "the same answer" if row.is_same else "another answer"
            console.print(
                f"pair {number} of {pairs}: chain {row.chain_s:.2f} s, Kairos "
                f"{row.kairos_s:.2f} s, {said}",
                highlight=False,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pairs", type=int, choices=range(1, PAIRS + 1), default=PAIRS, metavar="N"
    )
    parser.add_argument("--engine", choices=("llama", "vllm"), default="llama")
    parser.add_argument("--from", dest="source", type=Path, default=os.environ.get("KAIROS_DATA"))
    options = parser.parse_args()
    source = Path(options.source) if options.source else None
    console = Console()
    with ending("modules_real"):
        rows = asyncio.run(measure(options.pairs, options.engine, source, console))
    console.print(section(rows), markup=False, highlight=False)
    add_figures(figures(rows))


if __name__ == "__main__":
    main()
