"""`python -m bench.profile`: where the CPU time of a call goes, by part of its way.

Kinds of calls, each with 1, 8 and 64 instances, with and without a queue. With a queue the engines
run few calls at once and take a while, so that three of four calls wait. Kairos is started anew for
each pool, and its main thread is sampled (`bench/sampled.py`), which costs next to nothing.
Rewrites docs/profile.md from the rows that it keeps in bench/profile.jsonl; takes four minutes.
`--only TEXT` measures only the cells whose name has this text, such as `named` or `64 instances`.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from bench import load, profile_page, report, talk
from bench.asking import told
from bench.code import commit
from bench.load import Control
from bench.profile_page import KINDS, PAGE, ROWS, Cell, Row
from bench.rows import WRITTEN, machine
from bench.sampled import Counted
from bench.servers import NotStarted, Server, server
from bench.systems import (
    CONCURRENCY,
    MANY,
    free_ports,
    kairos_arguments,
    take_core,
    upstream_command,
    warm_up,
)
from bench.talk import NewClient
from bench.upstream import Mode

# Calls that an engine runs at once, by the number of engines: where calls are to wait.
FEW = {1: 32, 8: 4, 64: 1}
WAITING = 4  # calls under way, for each that an engine can run
CALLS_PER_S = 400  # that the engines do together, where calls are to wait
SECONDS = 3.0
LIMIT_S = 5.0
SLOW_CONCURRENCY = 64  # they mostly pause

CLIENTS: dict[str, Callable[[], NewClient]] = {
    "named": talk.named,
    "anonymous": talk.anonymous,
    "conversation": talk.conversations,
    "streams at once": talk.named_streams,
    "streams 20 ms apart": talk.named_streams,
}
MODES = {
    "streams at once": Mode(chunks=16),
    "streams 20 ms apart": Mode(chunks=16, interval_s=0.020),
}


class Pool(msgspec.Struct, frozen=True):
    """What Kairos is started for."""

    instances: int
    queue: bool
    metrics: bool  # the engines tell what their memory holds

    @property
    def slots(self) -> int:
        """Calls that the engines run at once."""
        return self.instances * (FEW[self.instances] if self.queue else MANY)


class Profiled:
    """A Kairos that is sampled."""

    def __init__(self, process: Server, counted: Path) -> None:
        self.process = process
        self._counted = counted

    async def counted(self) -> Counted:
        """What came since the last time."""
        self._counted.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR1)
        async with asyncio.timeout(LIMIT_S):
            while not self._counted.exists():
                await asyncio.sleep(0.01)
        return msgspec.json.decode(self._counted.read_bytes(), type=Counted)


def cells() -> list[Cell]:
    """All, those of one pool side by side."""
    made = [
        Cell(kind=kind, instances=instances, queue=queue, metrics=True)
        for queue in (False, True)
        for instances in FEW
        for kind in KINDS
    ]
    untold = [
        Cell(kind=kind, instances=instances, queue=False, metrics=False)
        for instances in FEW
        for kind in ("named", "anonymous")
    ]
    return made + untold


def by_pool(wanted: Sequence[Cell]) -> dict[Pool, list[Cell]]:
    found: dict[Pool, list[Cell]] = {}
    for cell in wanted:
        found.setdefault(Pool(cell.instances, cell.queue, cell.metrics), []).append(cell)
    return found


async def measure(wanted: Sequence[Cell], console: Console) -> list[Row]:
    system_core, rest_core = take_core(console)
    found = []
    for pool, of_pool in by_pool(wanted).items():
        async with profiled(pool, system_core, rest_core) as (kairos, control):
            for cell in of_pool:
                found.append(await profile(cell, pool, kairos, control))
                console.print(f"{cell.name}: {sum(found[-1].parts.values()):.0f} us a call")
    return found


@asynccontextmanager
async def profiled(
    pool: Pool, system_core: int | None, rest_core: int | None
) -> AsyncIterator[tuple[Profiled, Control]]:
    """Raises NotStarted."""
    *engines, port = free_ports(pool.instances + 1)
    with tempfile.TemporaryDirectory() as directory:
        counted = Path(directory) / "counted.json"
        seqs = pool.slots // pool.instances
        arguments = kairos_arguments(port, engines, seqs, f"{directory}/log")
        command = [sys.executable, "-m", "bench.sampled", str(counted), *arguments]
        upstream = upstream_command(engines, metrics=pool.metrics)
        async with (
            server(upstream, engines[0], rest_core),
            load.connected(engines[0]) as client,
            server(command, port, system_core) as kairos,
        ):
            await _all_joined(port, pool.instances)
            control = Control(client)
            await warm_up(port, control)
            yield Profiled(kairos, counted), control


async def _all_joined(port: int, instances: int) -> None:
    async with asyncio.timeout(LIMIT_S), load.connected(port) as client:
        while len(await told(client, "kairos_requests_running")) < instances:
            await asyncio.sleep(0.05)


async def profile(cell: Cell, pool: Pool, kairos: Profiled, control: Control) -> Row:
    mode = MODES.get(cell.kind, Mode())
    concurrency = WAITING * pool.slots if pool.queue else CONCURRENCY
    if mode.interval_s and not pool.queue:
        concurrency = SLOW_CONCURRENCY
    if pool.queue and not mode.interval_s:
        mode.delay_s = pool.slots / CALLS_PER_S
    await control.set(mode)
    await kairos.counted()
    clients = CLIENTS[cell.kind]()
    port = kairos.process.port
    async with asyncio.TaskGroup() as group:
        loaded = group.create_task(load.for_a_while(port, SECONDS, concurrency, clients))
        waiting = group.create_task(_waiting_in_the_middle(port))
    counted = await kairos.counted()
    calls = len(loaded.result())
    return Row(
        cell=cell,
        calls=calls,
        waiting=waiting.result(),
        samples=sum(counted.parts.values()),
        parts=profile_page.by_part(counted, calls),
        other=profile_page.largest(counted, calls),
        commit=commit(written=WRITTEN),
        date=datetime.now(UTC).date().isoformat(),
        machine=machine(),
    )


async def _waiting_in_the_middle(port: int) -> int:
    await asyncio.sleep(SECONDS / 2)
    async with load.connected(port) as client:
        return int(sum(await told(client, "kairos_requests_waiting")))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="cells whose name has it")
    parser.add_argument("--page", action="store_true", help="measure nothing: only write the page")
    arguments = parser.parse_args()
    console = report.console()
    wanted = [cell for cell in cells() if arguments.only in cell.name and not arguments.page]
    try:
        found = uvloop.run(measure(wanted, console))
    except* (NotStarted, load.Broken, TimeoutError) as group:
        sys.exit(f"bench: {group.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)
    known = {row.cell: row for row in [*profile_page.read(ROWS), *found]}
    kept = [known[cell] for cell in cells() if cell in known]
    profile_page.write(kept, ROWS)
    PAGE.write_text(profile_page.page(kept))
    console.print(f"{len(found)} cells measured; {PAGE.name} is of {len(kept)}")


if __name__ == "__main__":
    main()
