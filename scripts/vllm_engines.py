"""vLLM instances in the foreground, on cores and ports of their own: `make vllm`.

`python -m scripts.vllm_engines --count 2 --model tiny --port 8101` starts them, says where they
serve, and ends them with Ctrl-C, SIGTERM, or the end of what started it. Other options go to vLLM.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

from kairos.cli.demos.engines import start_engines
from kairos.core import SetupError
from kairos.engines.vllm import MODELS

PORT = 8101
SILENCE_S = 10.0
LOOK_S = 1.0


class StartProgress:
    """Lines with the elapsed seconds, and a sign of life after a long silence."""

    def __init__(self) -> None:
        self._began_at = self._said_at = time.monotonic()
        self.is_ready = False

    def say(self, line: str) -> None:
        self._said_at = time.monotonic()
        print(f"{self._said_at - self._began_at:5.1f} s  {line}", flush=True)

    def pass_time(self) -> None:
        if not self.is_ready and time.monotonic() - self._said_at > SILENCE_S:
            self.say("still starting; half a minute is usual, and longer on a busy machine")


async def hold(count: int, options: Sequence[str], progress: StartProgress) -> None:
    """Start instances and hold them until cancelled.

    Raises:
        SetupError: one of them did not start, or has ended.
    """
    failed: asyncio.Queue[str] = asyncio.Queue()
    async with start_engines(
        "vllm", count, options=options, on_progress=progress.say, on_failure=failed.put_nowait
    ) as urls:
        progress.is_ready = True
        progress.say("all are ready; their answers are noise. Ctrl-C ends them. For example:")
        print("kairos serve", *(f"--engine {url}" for url in urls), flush=True)
        raise SetupError(await failed.get())


async def until_ended(count: int, options: Sequence[str]) -> None:
    """Hold instances until a signal, or the end of the parent process.

    Not even SIGKILL of `make` leaves them behind."""
    parent, progress = os.getppid(), StartProgress()
    holding = asyncio.create_task(hold(count, options, progress))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, holding.cancel)
    while not (await asyncio.wait([holding], timeout=LOOK_S))[0]:
        progress.pass_time()
        if os.getppid() != parent and not holding.cancelling():  # a second time would be in haste
            holding.cancel()
    if not holding.cancelled():
        holding.result()
    progress.say("ended")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.vllm_engines",
        description="vLLM on the CPU, with a model of random weights, an instance for each core.",
        epilog="Other options are vLLM's, such as --max-num-seqs or --scheduling-policy.",
        allow_abbrev=False,
    )
    parser.add_argument("--count", type=int, default=2, help="instances [2]")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="its size [tiny]")
    parser.add_argument("--port", type=int, default=PORT, help=f"the first's [{PORT}]; 0: any")
    ours, options = parser.parse_known_args()
    if ours.count < 1:
        parser.error("--count must be 1 or more")
    options += ["--model", ours.model, "--port", str(ours.port)]
    try:
        asyncio.run(until_ended(ours.count, options))
    except SetupError as error:
        sys.exit(f"vllm: {error}")


if __name__ == "__main__":
    main()
