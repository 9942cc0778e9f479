"""The real side of a run: `kairos serve` before engines that run, and a replay against it."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec

from experiments.fidelity_cpu import Cores, Meter, cores
from kairos.core import CallRow, SetupError
from kairos.core.core_names import MOVED
from kairos.host import start_child
from kairos.simulate import Replay, Replayed
from kairos.simulate.workload.workflows import Submission

READY_S = 30.0
PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run. The rows are those of the client; preemptions are the engines' count."""

    rows: list[CallRow]
    preemptions: int
    late_starts: int  # workflows that the client submitted more than 10 ms late
    prompt_tokens_off: int  # as engines counted them less those wanted: the farthest from 0
    cores: Cores


def order_options(policy: str, placement: str) -> list[str]:
    """Return the options by which `kairos serve` takes these, baselines included."""
    order, where = (MOVED.get(each, each) for each in (policy, placement))
    return [f"--policy={order}", f"--placement={where}"]


async def play(
    engines: Sequence[str],
    submissions: Sequence[Submission],
    *,
    max_num_seqs: int,
    policy: str,
    placement: str,
    time_limit_s: float,
) -> Played:
    """Replay the submissions against a Kairos of their own, which has learnt nothing yet.

    Raises:
        SetupError: Kairos did not start, or some workflow did not come to its end.
    """
    serve = [f"--engine={url},max_num_seqs={max_num_seqs}" for url in engines]
    serve += order_options(policy, placement)
    async with serving(serve, len(engines)) as (process, url):
        meter = Meter(process.pid)
        began_at, used, preempted = time.monotonic(), meter.read(), await preemptions(engines)
        replayed = await Replay(url, submissions, time_limit_s=time_limit_s).run()
        preempted = await preemptions(engines) - preempted
        used_by = cores(used, meter.read(), time.monotonic() - began_at)
    check(replayed)
    return Played(
        rows=replayed.rows,
        preemptions=preempted,
        late_starts=replayed.late_starts,
        prompt_tokens_off=replayed.prompt_deviation.worst or 0,
        cores=used_by,
    )


def check(replayed: Replayed) -> None:
    """Raises SetupError: some workflow did not come to its end, or lengths are not as recorded."""
    are_exact = replayed.exact_lengths and not replayed.completion_deviation.worst
    if replayed.finished == replayed.workflows and are_exact:
        return
    raise SetupError(
        f"{replayed.workflows - replayed.finished} of {replayed.workflows} workflows did not come "
        f"to their end; calls failed: {replayed.examples or 'none'}; lengths of answers are "
        f"{'' if are_exact else 'not '}as asked for"
    )


async def preemptions(engines: Sequence[str]) -> int:
    """Of all calls so far."""
    total = 0.0
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for url in engines:
            async with session.get(f"{url}/metrics") as response:
                found = PREEMPTIONS.search(await response.text())
            if found is None:
                raise SetupError(f"{url} does not tell its preemptions: it is no vLLM")
            total += float(found[1])
    return int(total)


@asynccontextmanager
async def serving(
    options: Sequence[str], engines: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`kairos serve`, once all engines have joined: its process, and where it serves. It is killed
    with the block, and with this process, however that ends."""
    process = await start_child(
        *(sys.executable, "-m", "kairos.engines.child", "kairos.cli.main", "serve"),
        *("--port=0", "--admin-port=0", *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        url = await _ready(process.stdout, engines)
        draining = asyncio.create_task(process.stdout.read())  # a full pipe would stop it
        yield process, url
        draining.cancel()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _ready(output: asyncio.StreamReader, engines: int) -> str:
    """Raises SetupError: it ended, or is not ready in time; what it said is in the message."""
    said: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            async for line in output:
                said.append(line.decode(errors="replace"))
                found = re.search(r"serving on (\S+)/v1", "".join(said))
                if found and "".join(said).count(" serves ") == engines:
                    return found[1]
    raise SetupError(f"kairos serve is not ready: {''.join(said).strip() or 'it said nothing'}")
