"""Asks a question about this repository's documentation, of two small real models: `make rag-demo`.

It is answered twice, by engines that are started for it: as the chain of modules that
ask_documents.yaml declares, and as Kairos runs it. The answers are the same; what overlapped is
shown as bars. How long each took depends on what else the machine does: the two are not compared by
the clock, but by how many steps were at work at a time. The model is so small that its answers are
seldom good.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from examples.minilm import ALIAS, write_minilm
from kairos.cli import serve_engines
from kairos.cli.demos.engines import start_engines
from kairos.cli.demos.progress import show_progress
from kairos.core import SECOND, KairosError, SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows import FlowRuns, LoadedFlow, Passes, Timeline, load_flow
from kairos.workflows.execute.observation import Activity
from kairos.workflows.run.export import errors_path
from kairos.workflows.run.tables import open_table

HERE = Path(__file__).parent
FLOW = HERE / "ask_documents.yaml"
DOCUMENTS = tuple(
    HERE.parent / "docs" / "concepts" / f"{name}.md"
    for name in ("how-it-works", "learning", "order", "packing", "pool")
)
QUESTION = "How does Kairos know how long a call will take?"
LLAMA = ("--threads", "1", "--slots", "4", "--context", "8192")
EMBEDS = ("--threads", "1", "--slots", "4", "--context", "2048", "--alias", ALIAS, "--embeds")


class Answered(msgspec.Struct, frozen=True):
    """What came out, and what was under way when."""

    values: Mapping[str, object]
    activities: Sequence[Activity]

    @property
    def s(self) -> float:
        ends, begins = (e.ended_us for e in self.activities), (e.begun_us for e in self.activities)
        return (max(ends) - min(begins)) / SECOND

    @property
    def at_a_time(self) -> float:
        """Return how many steps were at work at a time, in the mean: 1 in a chain."""
        return sum(each.ended_us - each.begun_us for each in self.activities) / SECOND / self.s


class Servers(msgspec.Struct, frozen=True):
    """URLs: of what answers, and of what embeds. `collections`: the directory of those that
    stay."""

    engine: str | None
    embedder: str
    collections: str | None = None


@asynccontextmanager
async def embedding_server() -> AsyncIterator[str]:
    """MiniLM. Raises SetupError: it is not installed, or does not start."""
    with TemporaryDirectory() as scratch:
        model = Path(scratch) / "minilm.gguf"
        write_minilm(model)
        async with start_engines("llama", 1, options=(*EMBEDS, "--model", str(model))) as (url,):
            yield url


@asynccontextmanager
async def model_servers() -> AsyncIterator[Servers]:
    """Started anew, so that nothing is in their caches. Raises SetupError: one does not start."""
    async with (
        start_engines("llama", 1, options=LLAMA) as (engine,),
        embedding_server() as embedder,
    ):
        yield Servers(engine, embedder)


async def run_row(
    flow: LoadedFlow,
    row: Mapping[str, object],
    servers: Servers,
    *,
    as_chain: bool,
    console: Console,
    timeline: Timeline | None = None,
) -> Answered:
    """Raises SetupError: there is no answer."""
    engines = () if servers.engine is None else (servers.engine,)
    retrieval = RetrievalSettings(embedders=(servers.embedder,), collections=servers.collections)
    with TemporaryDirectory() as scratch:
        runs, out = FlowRuns(Path(scratch) / "runs"), Path(scratch) / "answer.jsonl"
        task = runs.prepare_program(
            flow,
            [row],
            out,
            engines=engines,
            retrieval=retrieval,
            passes=dict.fromkeys(Passes.__struct_fields__, False) if as_chain else {},
            uses_cache=False,
        )
        timeline = timeline or Timeline()
        record = await runs.drive(task, serve_engines, console.print, timeline=timeline)
        if record.has_failures:
            [error] = open_table(errors_path(out)).rows()
            raise SetupError(f"there is no answer: {error.values}")
        [written] = open_table(out).rows()
    return Answered(written.values or {}, timeline.activities)


def bars(activities: Sequence[Activity], width: int = 60) -> str:
    """Return a line for each step, in order of its start: name, bar on one scale, seconds."""
    begins = min(each.begun_us for each in activities)
    scale = width / max(1, max(each.ended_us for each in activities) - begins)
    names = max(len(each.node) for each in activities)
    lines = []
    for each in sorted(activities, key=lambda each: each.begun_us):
        left = round((each.begun_us - begins) * scale)
        long = max(1, round((each.ended_us - each.begun_us) * scale))
        bar = (" " * min(left, width - 1) + "█" * long)[:width].ljust(width)
        lines.append(
            f"{each.node:<{names}}  {bar}  {(each.ended_us - each.begun_us) / SECOND:7.2f} s"
        )
    return "\n".join(lines)


async def demo(question: str, text: str, console: Console) -> tuple[Answered, Answered]:
    """Answer as a chain, and as Kairos runs it.

    Raises:
        SetupError: An engine does not start, or there is no answer.
    """
    console.print(question, style="bold", markup=False)
    flow, row, found = load_flow(FLOW), {"question": question, "text": text}, []
    for title, as_chain in (("a chain of modules", True), ("as Kairos runs it", False)):
        answered = await _answered(flow, row, title, as_chain=as_chain, console=console)
        console.print(f"\n[bold]{title}[/]: {answered.s:.1f} s")
        console.print(bars(answered.activities), markup=False, highlight=False, soft_wrap=True)
        found.append((title, answered))
    (_, chain), (_, ours) = found
    console.print(f"\n{ours.values['answer']}\n", style="bold", markup=False)
    same = "the same answer" if chain.values == ours.values else "another answer"
    console.print(
        f"{same}; {ours.at_a_time:.1f} steps at a time instead of {chain.at_a_time:.1f}",
        soft_wrap=True,
    )
    return chain, ours


async def _answered(
    flow: LoadedFlow, row: Mapping[str, object], title: str, *, as_chain: bool, console: Console
) -> Answered:
    """Answer once, on servers of its own, while a line shows how far it is."""
    timeline, began_at, doing = Timeline(), time.monotonic(), "starting two model servers"

    def told() -> str:
        done = f", {len(timeline.activities)} steps done" if timeline.activities else ""
        return f"{title}: {doing}, {time.monotonic() - began_at:.0f} s{done}"

    progress = asyncio.create_task(show_progress(console, told))
    try:
        async with model_servers() as servers:
            doing = "answering"
            return await run_row(
                flow, row, servers, as_chain=as_chain, console=console, timeline=timeline
            )
    finally:
        progress.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--documents", type=Path, nargs="+", default=DOCUMENTS, help="text files")
    options = parser.parse_args()
    try:
        text = "\n\n".join(each.read_text() for each in options.documents)
        asyncio.run(demo(options.question, text, Console()))
    except (KairosError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
