"""`kairos replay`: drives a running gateway with recorded workflows."""

import asyncio
import json
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli import options
from kairos.cli.options import GATEWAY, ApiKeyEnv
from kairos.cli.running import run
from kairos.settings import default_api_key

if TYPE_CHECKING:
    from kairos.simulate import Replay, Replayed


def replay(
    workflows: options.Workflows,
    url: Annotated[
        str, typer.Option(help="A running Kairos, or any server that speaks OpenAI's API.")
    ] = GATEWAY,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    count: options.Count = None,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals and the workflows' order.")] = 1,
    model: Annotated[
        str | None, typer.Option(help=r"Asked for in every call \[the server's first].")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    max_context: options.MaxContext = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds after which what has not finished is given up."),
    ] = None,
    stream: Annotated[
        bool, typer.Option(help="Stream the answers, so that times to first token are seen.")
    ] = True,
    as_json: options.RecordAsJson = False,
) -> None:
    """Drive a running gateway with recorded workflows: real HTTP calls of the recorded lengths.

    Workflows begin at their instants, however late replies are (open loop). Within a workflow a
    call is sent when the calls it waits for have ended. Prompts are made-up text with the recorded
    numbers of tokens and common prefixes; completions have the recorded lengths if the engine
    accepts `min_tokens` and `ignore_eos`, as vLLM does. Figures are as seen by a client. The same
    file and options give the same arrivals as in kairos simulate.

    The exit status is 1 if a workflow failed or did not finish, 130 after Ctrl-C; results so far
    are printed in any case.

    Examples:

    kairos replay --workflows traces/demo-smollm2.jsonl.gz --rate 2 --count 100

    kairos replay --workflows run.jsonl --url http://gpu1:8000 --rate 5 --arrivals poisson --json
    """
    api_key = default_api_key(api_key_env, os.environ)
    from kairos.host import allow_many_connections, collect_less_often
    from kairos.simulate import Load, Replay, offered_workload

    asked = Load(
        workflows=workflows,
        arrivals=arrivals,
        rate_per_s=rate,
        count=count,
        max_context=max_context,
    )
    submissions, _ = offered_workload(asked).of(seed)
    replaying = Replay(
        url, submissions, model=model, api_key=api_key, stream=stream, time_limit_s=time_limit
    )
    allow_many_connections()
    collect_less_often()
    if not run(_replay(replaying, as_json=as_json)):
        raise typer.Exit(1)


async def _replay(run: "Replay", *, as_json: bool) -> bool:
    """Run the replay. Return whether all workflows finished."""
    from rich.console import Console

    from kairos.cli.demos.progress import show_progress

    told = partial(_progress, run)
    progress = asyncio.create_task(show_progress(Console(stderr=True), told))
    try:
        await run.run()
    finally:
        progress.cancel()
        await asyncio.wait([progress])  # while it shows anything, standard output is its own
        replayed = run.result()
        if run.has_begun:
            _show(replayed, as_json=as_json)
    return replayed.finished == replayed.workflows


def _progress(run: "Replay") -> str:
    now = run.progress()
    return (
        f"{now.elapsed_s:5.1f} s  submitted {now.begun}/{now.workflows}  finished {now.finished}  "
        f"failed {now.failed}  calls in flight {now.calls_in_flight}"
    )


def _show(replayed: "Replayed", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(replayed.figures()))
    else:
        from rich.console import Console

        from kairos.cli.demos.tables import show_record

        show_record(Console(), replayed.metrics)
        for line in _told(replayed):
            # A server's words may hold what a terminal would obey.
            typer.echo("".join(each if each.isprintable() else "?" for each in line))
    if not replayed.kept_up:
        typer.echo(
            f"kairos: this machine could not keep up: {replayed.late_starts} of {replayed.begun} "
            f"workflows began over 10 ms late, the worst {replayed.worst_start_s:.3f} s, and "
            f"{replayed.not_sent} calls could not be sent; what was measured is another load than "
            "was asked for: try a lower --rate, or several machines",
            err=True,
        )


def _told(replayed: "Replayed") -> Iterator[str]:
    yield (
        f"Replay {replayed.run_id} on {replayed.model}, {replayed.elapsed_s:.1f} s: of "
        f"{replayed.workflows} workflows {replayed.finished} finished, {replayed.failed} failed, "
        f"{replayed.unfinished} did not end in time"
    )
    yield (
        f"Begun over 10 ms late: {replayed.late_starts} of {replayed.begun}; the worst "
        f"{replayed.worst_start_s * 1000:.1f} ms"
    )
    for name, deviation in (
        ("Prompt", replayed.prompt_deviation),
        ("Completion", replayed.completion_deviation),
    ):
        if deviation.calls:
            yield (
                f"{name} tokens, counted less recorded: median {deviation.median:+g}, worst "
                f"{deviation.worst:+}, of {deviation.calls} calls"
            )
    if not replayed.exact_lengths:
        yield "Completions are not as recorded: the server takes no min_tokens and ignore_eos"
    for kind, number in sorted(replayed.retries.items()):
        yield f"Tried again: {number} x {kind}"
    for kind, number in sorted(replayed.failures.items()):
        yield f"Failed: {number} x {kind}, such as: {replayed.examples[kind]}"
