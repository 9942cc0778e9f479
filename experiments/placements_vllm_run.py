"""A run of a placement: a `kairos serve` of its own before engines that all runs share."""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from experiments.fidelity_cpu import Cores, Meter, cores
from experiments.fidelity_engines import Limits, Tell, engines
from experiments.fidelity_real import check, order_options, serving
from experiments.placements_vllm_counts import Counts, Sizes, measured_sizes, read_counts
from kairos.core import SetupError
from kairos.simulate import Replay, Replayed
from kairos.simulate.workload.workflows import Submission

# 1,760 tokens: some twelve calls of the average. Prompts come in one piece.
LIMITS = Limits(kv_blocks=40, max_num_seqs=48, max_num_batched_tokens=2048, max_model_len=768)
COUNTING = ("--enable-mfu-metrics",)  # vLLM's: without it, nothing tells what was computed again
POLICY = "kairos"
TIME_LIMIT_S = 300.0  # of a run
IDLE_S, LOOK_S = 20.0, 0.1
STOP_S = 20.0
PROBES = ((400, 2), (8, 60))  # tokens of prompt and answer
FIRST_TOKEN_ID, TOKEN_IDS = 100, 3000  # of which probes are made: ordinary ones in every model


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run: as its client saw it, and as the engines counted."""

    replayed: Replayed
    counts: Counts
    recomputed_tokens: int
    cores: Cores


class Pool:
    """Engines that run, what they hold of which size, and what a Kairos before them begins with."""

    def __init__(self, urls: Sequence[str], limits: Limits, sizes: Sizes, learnt: bytes) -> None:
        """`learnt`: the content of a file that Kairos keeps what it learns in."""
        self._urls, self._limits, self._sizes, self._learnt = urls, limits, sizes, learnt

    async def run(
        self, submissions: Sequence[Submission], placement: str, policy: str = POLICY
    ) -> Ran:
        """Play the submissions under this placement, in the order of this policy.

        Raises:
            SetupError: Kairos did not start, some workflow did not come to its end, or the engines
                go on with something that is none of ours.
        """
        with tempfile.TemporaryDirectory() as directory:
            learnt = Path(directory) / "learnt.json"
            learnt.write_bytes(self._learnt)
            before = await idle_counts(self._urls)
            options = serve_options(
                self._urls, self._limits.max_num_seqs, policy, placement, learnt
            )
            async with serving(options, len(self._urls)) as (process, url):
                meter = Meter(process.pid)
                began_at, used = time.monotonic(), meter.read()
                replayed = await replay(url, submissions)
                used_by = cores(used, meter.read(), time.monotonic() - began_at)
                counts = await idle_counts(self._urls) - before
        check(replayed)
        return Ran(
            replayed=replayed,
            counts=counts,
            recomputed_tokens=self._sizes.recomputed_tokens(counts),
            cores=used_by,
        )


@asynccontextmanager
async def pool(
    model: str, submissions: Sequence[Submission], placement: str, tell: Tell
) -> AsyncIterator[Pool]:
    """Engines of this model, and what a Kairos learns of these submissions, under this placement.

    Raises:
        SetupError: engines or Kairos did not start, or some workflow did not come to its end.
    """
    async with engines(LIMITS, tell, model=model, others=COUNTING) as urls:
        yield await learnt_pool(urls, LIMITS, model, submissions, placement, tell)


async def learnt_pool(
    urls: Sequence[str],
    limits: Limits,
    model: str,
    submissions: Sequence[Submission],
    placement: str,
    tell: Tell,
) -> Pool:
    """Before engines that run, started with COUNTING, which have computed nothing yet. What is
    learnt of these submissions, from nothing, all runs begin with."""
    sizes = await _sizes(urls[0], model)
    tell(f"learning from {len(submissions)} workflows under {placement}")
    learnt = await learnt_of(urls, limits.max_num_seqs, submissions, placement)
    return Pool(urls, limits, sizes, learnt)


async def learnt_of(
    urls: Sequence[str], max_num_seqs: int, submissions: Sequence[Submission], placement: str
) -> bytes:
    """The content of the file that a Kairos keeps which has served these submissions.

    Raises:
        SetupError: Kairos did not start, or some workflow did not come to its end.
    """
    with tempfile.TemporaryDirectory() as directory:
        learnt = Path(directory) / "learnt.json"
        options = serve_options(urls, max_num_seqs, POLICY, placement, learnt)
        async with serving(options, len(urls)) as (process, url):
            check(await replay(url, submissions))
            process.send_signal(signal.SIGTERM)  # it saves what it has learnt
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        if not learnt.exists():
            raise SetupError("kairos serve has learnt nothing of a whole run")
        return learnt.read_bytes()


def serve_options(
    urls: Sequence[str], max_num_seqs: int, policy: str, placement: str, learnt: Path
) -> list[str]:
    """Of `kairos serve`. `learnt`: the file that it begins with, if it is there, and keeps."""
    told = [f"--engine={url},max_num_seqs={max_num_seqs}" for url in urls]
    return [*told, *order_options(policy, placement), f"--learnt={learnt}"]


async def replay(url: str, submissions: Sequence[Submission]) -> Replayed:
    """What came of the submissions, sent there at their instants."""
    return await Replay(url, submissions, time_limit_s=TIME_LIMIT_S, tell_lengths=False).run()


async def _sizes(url: str, model: str) -> Sizes:
    """What this engine, which has computed nothing yet, counts for a token."""
    random = Random(0)  # noqa: S311  (prompts, no secret)
    told: list[Counts] = []
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for prompt_tokens, completion_tokens in PROBES:
            prompt = [random.randrange(TOKEN_IDS) + FIRST_TOKEN_ID for _ in range(prompt_tokens)]
            length = {"max_tokens": completion_tokens, "ignore_eos": True}
            asked = {"model": model, "prompt": prompt, **length}
            before = await idle_counts([url])
            async with session.post(f"{url}/v1/completions", json=asked) as response:
                await response.read()
            told.append(await idle_counts([url]) - before)
    return measured_sizes(told)


async def idle_counts(urls: Sequence[str]) -> Counts:
    """Of all engines together, once they have nothing to do and have told so twice: some counts
    come a step late.

    Raises:
        SetupError: they have something to do for too long.
    """
    last: Counts | None = None
    try:
        async with asyncio.timeout(IDLE_S), aiohttp.ClientSession(raise_for_status=True) as session:
            while True:
                read = [await _counts(session, url) for url in urls]
                counts = sum(read, Counts())
                if counts.is_idle and counts == last:
                    return counts
                last = counts
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise SetupError(f"engines are busy {IDLE_S:g} s after the last call: {last}") from None


async def _counts(session: aiohttp.ClientSession, url: str) -> Counts:
    async with session.get(f"{url}/metrics") as response:
        return read_counts(await response.text())
