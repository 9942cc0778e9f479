"""`kairos standin`: an engine without a model, to try things with."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kairos.cli.options import with_options
from kairos.cli.running import run

_Failure = Literal["unavailable", "hang", "cut", "stall", "error"]


class StandInOptions(msgspec.Struct, frozen=True, kw_only=True):
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any.")] = 8100
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    model: Annotated[str, typer.Option(help="Name of the model that it serves.")] = "standin"
    max_model_len: Annotated[int, typer.Option(min=1, help="Tokens of the longest call.")] = 8192
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Calls at once.")] = 16
    kv_tokens: Annotated[int, typer.Option(min=1, help="Tokens that its memory has.")] = 65_536
    step_ms: Annotated[float, typer.Option(help="ms of a step.")] = 10.0
    step_per_seq_ms: Annotated[float, typer.Option(help="ms of a step for each call.")] = 0.2
    prefill_tokens_per_s: Annotated[
        float, typer.Option(help="Tokens of prompts that it reads in a second.")
    ] = 10_000.0
    instant: Annotated[bool, typer.Option("--instant", help="Answer without any delay.")] = False
    script: Annotated[
        Path | None, typer.Option(help="JSON file of rules that say how to answer a prompt.")
    ] = None
    lengths: Annotated[
        Path | None, typer.Option(help="Workflow file that has the length of each agent's answer.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0
    kv_transfer: Annotated[
        bool, typer.Option("--kv-transfer", help="Take part in a pair, as with a KV connector.")
    ] = False
    fail: Annotated[_Failure | None, typer.Option(help="Let every call fail like this.")] = None


@with_options
def standin(given: StandInOptions) -> None:
    """Serve a made-up model: vLLM's interface with scripted text and modelled time.

    It prints `ready URL` and runs until Ctrl-C. It has no tokenizer, no sampling and no key.

    Example: kairos standin --port 8100 --instant
    """
    from kairos.simulate import until_killed

    run(until_killed(**msgspec.structs.asdict(given)))
