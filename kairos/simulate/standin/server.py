"""A stand-in for a vLLM server: its HTTP interface with modelled time and scripted text.

`kairos standin` and `python -m kairos.simulate.standin.server` run one as a process and print
`ready URL`; `serve` runs one inside a test's loop. `kairos.simulate.standin.batch` documents the
model of time and its limits, `kairos.simulate.standin.script` the source of text and calls of
tools. It has no tokenizer, no sampling, no log probabilities and no key.

A call fails on purpose when its body has the field `fail`; all do with `--fail`:

    unavailable   503 before anything else
    hang          no byte of an answer until the client leaves
    cut           the connection breaks after half of the tokens (whole replies: before the first)
    stall         silence after half of the tokens until the client leaves (whole: as hang)
    error         after half of the tokens an error event and [DONE] (whole replies: status 500)

`POST /pause` freezes the engine and `POST /resume` continues it, as vLLM's own do: an admin route,
which only the operator should reach.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import get_args

from aiohttp import web

from kairos.core import SetupError
from kairos.simulate.standin.batch import INSTANT, Timing
from kairos.simulate.standin.bodies import Failure
from kairos.simulate.standin.routes import StandIn, StandInSettings
from kairos.simulate.standin.script import Script, load, load_lengths

__all__ = ["StandIn", "StandInSettings", "serve"]

HOST = "127.0.0.1"


@asynccontextmanager
async def serve(
    settings: StandInSettings | None = None,
    says: Script | None = None,
    *,
    host: str = HOST,
    port: int = 0,
) -> AsyncIterator[StandIn]:
    """Serve until the block ends; what still runs then is dropped."""
    standin = StandIn(settings or StandInSettings(), says or Script())
    # Without the cancellation a call whose client has left would generate to its end.
    runner = web.AppRunner(
        standin.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.01
    )
    await runner.setup()
    stepping = asyncio.create_task(standin.batch.run())
    try:
        await web.TCPSite(runner, host, port).start()
        standin.url = f"http://{host}:{runner.addresses[0][1]}"
        yield standin
    finally:
        stepping.cancel()
        await runner.cleanup()


def _arguments() -> argparse.Namespace:
    timing, default = Timing(), StandInSettings()
    parser = argparse.ArgumentParser(prog="python -m kairos.simulate.standin.server")
    parser.add_argument("--host", default=HOST, help="0.0.0.0: all of this machine's addresses")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--model", default=default.model)
    parser.add_argument("--max-model-len", type=int, default=default.max_model_len)
    parser.add_argument("--max-num-seqs", type=int, default=default.max_num_seqs)
    parser.add_argument("--kv-tokens", type=int, default=default.kv_tokens)
    parser.add_argument("--step-ms", type=float, default=timing.step_s * 1e3)
    parser.add_argument("--step-per-seq-ms", type=float, default=timing.step_per_seq_s * 1e3)
    parser.add_argument("--prefill-tokens-per-s", type=float, default=timing.prefill_tokens_per_s)
    parser.add_argument("--instant", action="store_true", help="no delays at all")
    parser.add_argument("--script", type=Path, help="JSON rules: what to say to whom")
    parser.add_argument("--lengths", type=Path, help="workflow file: how much each agent says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-transfer", action="store_true", help="as with a KV connector")
    parser.add_argument("--fail", choices=get_args(Failure), help="how every call goes wrong")
    return parser.parse_args()


async def until_killed(
    *,
    host: str,
    port: int,
    model: str,
    max_model_len: int,
    max_num_seqs: int,
    kv_tokens: int,
    step_ms: float,
    step_per_seq_ms: float,
    prefill_tokens_per_s: float,
    instant: bool,
    script: Path | None,
    lengths: Path | None,
    seed: int,
    kv_transfer: bool,
    fail: Failure | None,
) -> None:
    """Run one with the command's options.

    Raises:
        SetupError: a file is missing or wrong, or the port is taken.
    """
    timing = Timing(
        step_s=step_ms / 1e3,
        step_per_seq_s=step_per_seq_ms / 1e3,
        prefill_tokens_per_s=prefill_tokens_per_s,
    )
    settings = StandInSettings(
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        kv_tokens=kv_tokens,
        timing=INSTANT if instant else timing,
        fail=fail,
        kv_transfer=kv_transfer,
    )
    rules = load(script) if script else ()
    says = Script(rules, seed, load_lengths(lengths) if lengths else {})
    try:
        async with serve(settings, says, host=host, port=port) as standin:
            print("ready", standin.url, flush=True)
            await asyncio.get_running_loop().create_future()  # until killed
    except OSError as error:
        said = f"cannot listen on {host}:{port}: {error.strerror}; name another --port"
        raise SetupError(said) from error


def main() -> None:
    with suppress(KeyboardInterrupt):
        try:
            asyncio.run(until_killed(**vars(_arguments())))
        except SetupError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
