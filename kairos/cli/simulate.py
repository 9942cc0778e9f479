"""`kairos simulate`: a pool in virtual time."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kairos.cli import options
from kairos.cli.flow_options import FunctionsFile, Without, switched_off
from kairos.cli.options import SERVE, fill_options, with_options
from kairos.core import PLACEMENT_NAMES, POLICY_NAMES, SECOND, SetupError

if TYPE_CHECKING:
    from kairos.observe import FactLog
    from kairos.simulate import Simulation

POLICIES, PLACEMENTS = ", ".join(sorted(POLICY_NAMES)), ", ".join(sorted(PLACEMENT_NAMES))
LOG_FILES = 1_000_000  # a simulation's log is whole


class Simulate(msgspec.Struct, frozen=True, kw_only=True):
    workflows: options.WorkflowsIfAny = None
    scenario: Annotated[
        Path | None,
        typer.Option(help="A scenario file: applications, arrivals, instances and their failures."),
    ] = None
    flow: Annotated[
        Path | None, typer.Option(help="A declared workflow, over the rows of --inputs.")
    ] = None
    inputs: Annotated[Path | None, typer.Option(help="The table of rows, for --flow.")] = None
    functions: FunctionsFile = None
    without: Without = None
    policy: Annotated[
        str | None, typer.Option(help=rf"Order of the queue \[{SERVE.policy}]: {POLICIES}.")
    ] = None
    placement: Annotated[
        str | None,
        typer.Option(help=rf"Choice of the instance \[{SERVE.placement}]: {PLACEMENTS}."),
    ] = None
    versus: Annotated[
        str | None, typer.Option(help="Another policy: the same runs under it too, compared.")
    ] = None
    instances: Annotated[
        int | None, typer.Option(min=1, max=10_000, help=r"Engines that serve \[4].")
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(help=r"Profile of the engines: a name, or a file \[a40-llama3-8b]."),
    ] = None
    rate: options.Rate = None
    arrivals: options.Arrivals = None
    count: options.Count = None
    seed: Annotated[
        int | None, typer.Option(help=r"Seed of the arrivals and the workflows' order \[1].")
    ] = None
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            help="Runs, of as many seeds from --seed on: means, and how sure they are.",
        ),
    ] = 1
    max_context: options.MaxContext = None
    log: Annotated[
        Path | None,
        typer.Option(
            help="Keep facts and decisions of the (first) run in this directory, for kairos "
            "explain --log and kairos export --since all."
        ),
    ] = None
    as_json: options.RecordAsJson = False


@with_options
def simulate(given: Simulate) -> None:
    """See what a policy would have done: recorded workflows on a pool of simulated vLLM engines.

    What decides is what decides in a live Kairos: the same balancer, policies, placements and
    learning, in virtual time before a model of the engines. An hour of traffic takes seconds, and
    the same command prints the same figures.

    Ctrl-C prints what has ended so far.

    Examples:

    kairos simulate --workflows traces/demo-smollm2.jsonl.gz --rate 6 --versus fcfs

    kairos simulate --workflows run.jsonl --rate 4 --seeds 10 --versus fcfs --json

    kairos export --since 24h --log LOG --output day.jsonl  # what a Kairos served, when it came

    kairos simulate --workflows day.jsonl --versus fcfs

    kairos simulate --workflows AzureLLMInferenceTrace_conv.csv.gz --instances 2

    kairos simulate --scenario traces/scenarios/failure.toml --log facts

    kairos simulate --flow summarise.yaml --inputs docs.jsonl --instances 2 --without cse
    """
    if given.flow is not None:
        alone = ("workflows", "scenario", "versus", "rate", "arrivals", "count", "log")
        if any(getattr(given, name) for name in alone):
            raise SetupError("--flow is run alone: --instances, --profile, --policy, --placement")
        _simulate_flow(given, given.flow)
        return
    from kairos.simulate import SimulationOptions, prepare_simulation

    asked = fill_options(SimulationOptions, given)
    with _progress() as on_second:
        simulation = prepare_simulation(asked, on_second)
        with _log(given.log) as facts, _interrupted_by_ctrl_c(simulation):
            simulation.run(facts)
    if simulation.done:
        _show(simulation, as_json=given.as_json)
    if simulation.is_interrupted:
        typer.echo(f"kairos: interrupted; {_told_so_far(simulation)}", err=True)
    if facts is not None and facts.is_failing:
        raise SetupError(f"the log in {given.log} is not whole: make room, and simulate it again")
    if simulation.is_interrupted:
        raise typer.Exit(130)


def _simulate_flow(given: Simulate, flow: Path) -> None:
    from kairos.simulate import pool_options, simulate_flow_file
    from kairos.workflows import Passes

    passes = Passes(**switched_off(given.without or []))
    pool = pool_options(given.instances, given.profile, given.policy, given.placement)
    run = simulate_flow_file(flow, given.inputs, given.functions, passes, pool)
    shown = msgspec.json.encode(run).decode() if given.as_json else "\n".join(run.lines())
    typer.echo(shown)


@contextmanager
def _log(directory: Path | None) -> "Iterator[FactLog | None]":
    """Yield a log in the directory, or None.

    Raises SetupError: The directory cannot be used, or has a log already.
    """
    if directory is None:
        yield None
        return
    from kairos.observe import FactLog

    if any(file.stat().st_size for file in directory.glob("facts-*.jsonl")):
        raise SetupError(f"there is a log in {directory} already: name another directory")
    try:
        log = FactLog(directory, max_files=LOG_FILES)
    except OSError as error:
        raise SetupError(f"cannot use the log directory {directory}: {error.strerror}") from None
    with closing(log):
        yield log


@contextmanager
def _progress() -> "Iterator[Callable[[Simulation], None]]":
    """Yield a function that shows the progress of a simulation on standard error."""
    from rich.console import Console
    from rich.live import Live

    from kairos.cli.demos.progress import LINE_EVERY_S, REFRESH_S

    console, shown_at = Console(stderr=True), time.monotonic()
    every_s = REFRESH_S if console.is_terminal else LINE_EVERY_S
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(simulation: "Simulation") -> None:
            nonlocal shown_at
            if time.monotonic() < shown_at + every_s:
                return
            shown_at = time.monotonic()
            if console.is_terminal:
                live.update(_told(simulation), refresh=True)
            else:
                console.print(_told(simulation), soft_wrap=True)

        yield show


def _told(simulation: "Simulation") -> str:
    world, runs = simulation.world, len(simulation.seeds) * len(simulation.policies)
    assert world is not None
    return (
        f"run {simulation.done + 1}/{runs}: {world.clock.now() / SECOND:,.0f} s of virtual time, "
        f"{simulation.workflows - world.users.left}/{simulation.workflows} workflows ended, "
        f"{world.balancer.waiting} calls wait"
    )


def _told_so_far(simulation: "Simulation") -> str:
    runs = len(simulation.seeds) * len(simulation.policies)
    world = simulation.world
    if simulation.done and not simulation.is_broken_off:
        return f"{simulation.done} of {runs} runs had ended, and are what is shown"
    ended = 0 if world is None else simulation.workflows - world.users.left
    return f"{ended} of {simulation.workflows} workflows had ended, and are all that counts"


@contextmanager
def _interrupted_by_ctrl_c(simulation: "Simulation") -> Iterator[None]:
    """The first ends the run in order, the next one at once."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        simulation.interrupt()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _show(simulation: "Simulation", *, as_json: bool) -> None:
    record = simulation.summarise()
    if as_json:
        typer.echo(json.dumps(record))
        return
    from rich.console import Console

    from kairos.cli.demos.tables import (
        show_comparison,
        show_intervals,
        show_record,
        told_burstiness,
    )

    console = Console()
    if "intervals" in record:
        show_intervals(console, record)
    elif record.get("ratio"):
        show_comparison(console, record)
    else:
        show_record(console, next(iter(record["runs"].values())) if "runs" in record else record)
    for policy, runs in simulation.results.items():
        for seed, run in zip(simulation.seeds, runs, strict=False):
            typer.echo(f"{policy}, seed {seed}: {_outcome(run)}")
    first = next(run for runs in simulation.results.values() for run in runs)
    typer.echo(f"Arrivals, seed {simulation.seeds[0]}: {told_burstiness(first['arrivals'])}")


def _outcome(run: dict[str, Any]) -> str:
    return (
        f"{run['workflows']} workflows in {run['simulated_s']:,.0f} s of virtual time; "
        f"{run['failed']} failed, {run['retries']} calls tried again"
    )
