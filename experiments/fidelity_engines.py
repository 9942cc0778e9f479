"""Real engines for a while, and what a calibration says of them."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec

from kairos.cli.demos.engines import start_engines
from kairos.core import EngineProfile, SetupError
from kairos.engines import load_profile
from kairos.engines.vllm import has_avx512
from kairos.host import start_child

ENGINES = 2
MODEL = "large"
# As fast without AVX-512 as the large one with it.
MODEL_FOR_CI = MODEL if has_avx512() else "mid"
BLOCK_TOKENS = 32  # the least that vLLM takes on CPU
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}

Tell = Callable[[str], None]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """With which engines are started. Calls queue in Kairos, long prompts come in chunks."""

    kv_blocks: int  # one of them holds nothing: vLLM's null block
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048

    @property
    def kv_tokens(self) -> int:
        """That an engine holds."""
        return (self.kv_blocks - 1) * BLOCK_TOKENS

    def of(self, measured: EngineProfile) -> EngineProfile:
        """What was measured on engines of other memory, with this memory."""
        return msgspec.structs.replace(measured, kv_tokens=self.kv_tokens)


ROOMY = Limits(kv_blocks=1024)
SMALL = Limits(kv_blocks=96)


@asynccontextmanager
async def engines(
    limits: Limits, tell: Tell, *, model: str = MODEL, others: Sequence[str] = ()
) -> AsyncIterator[list[str]]:
    """The URLs of two vLLM instances, each on a core of its own. `others` are options of vLLM's."""
    options = {
        "--model": model,
        "--block-size": BLOCK_TOKENS,
        "--num-gpu-blocks-override": limits.kv_blocks,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": limits.max_num_batched_tokens,
        "--max-model-len": limits.max_model_len,
    }
    words = [*(str(word) for option in options.items() for word in option), *others]
    async with start_engines("vllm", ENGINES, options=words, on_progress=tell) as urls:
        yield urls


async def empty_caches(urls: Sequence[str]) -> None:
    """What vLLM can be told that was started with DEVELOPMENT in its environment.

    Raises:
        SetupError: one does not do it.
    """
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(f"{url}/reset_prefix_cache") as answer:
                if answer.status != 200:
                    raise SetupError(f"vLLM does not empty its cache: status {answer.status}")


async def calibrated(urls: Sequence[str], limits: Limits, *options: str) -> EngineProfile:
    """The profile that `kairos calibrate` makes of engines that run, all busy at once. `options`:
    more of its own.

    Raises:
        SetupError: it did not come to its end.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "engines.toml"
        await calibrate(
            urls,
            file,
            f"--max-num-seqs={limits.max_num_seqs}",
            f"--max-num-batched-tokens={limits.max_num_batched_tokens}",
            "--quick",
            *options,
        )
        return limits.of(load_profile(str(file)))


async def calibrate(urls: Sequence[str], file: Path, *options: str) -> None:
    """Write the profile of engines that run there. What `kairos calibrate` prints goes where this
    process prints its errors.

    Raises:
        SetupError: it did not come to its end.
    """
    engines = (f"--engine={url}" for url in urls)
    status = await _run("calibrate", *engines, f"--output={file}", *options)
    if status != 0:
        raise SetupError(f"kairos calibrate ended with {status}")


async def _run(*arguments: str) -> int:
    """A command of Kairos's, to its end; it ends with this process, too. Returns its status."""
    process = await start_child(
        *(sys.executable, "-m", "kairos.engines.child", "kairos.cli.main", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        return await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
