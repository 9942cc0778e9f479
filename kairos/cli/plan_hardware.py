"""`kairos plan-hardware`: what to buy or rent, what runs where, and how many."""

import json
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kairos.capacity import Terms
from kairos.cli.flow_options import FunctionsFile
from kairos.cli.options import fill_options, with_options

TERMS = Terms()
NOT_MET = 3  # the exit status where no pool is within target and budget


class PlanHardware(msgspec.Struct, frozen=True, kw_only=True):
    flow: Annotated[
        Path | None,
        typer.Argument(metavar="[FLOW]", help="A declared workflow, over the rows of --inputs."),
    ] = None
    export: Annotated[
        Path | None,
        typer.Option(help="Or a workflow file, such as one that `kairos export` wrote."),
    ] = None
    inputs: Annotated[Path | None, typer.Option(help="The table of FLOW's rows.")] = None
    functions: FunctionsFile = None
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="p95=30s: 95 of 100 workflows are to take no longer. Of calls: ttft=250ms, "
            "tpot=20ms. May be given several times."
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model, as the catalogue names it, or AGENT=MODEL, or SERVED=MODEL for what "
            r"was served by another name. May be given several times \[what the calls asked for, "
            "or llama-3-8b]."
        ),
    ] = None
    precision: Annotated[str, typer.Option(help="Precision of the weights: bf16, fp8.")] = "bf16"
    hardware: Annotated[
        str | None,
        typer.Option(help=r"Allowed hardware, by name: h100,gaudi3 \[all with a price]."),
    ] = None
    catalogue: Annotated[
        Path | None,
        typer.Option(help="A file (TOML) with accelerators, models and prices of your own."),
    ] = None
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="DEVICE=PROFILE, or DEVICE@MODEL=PROFILE: what `kairos calibrate` measured of the "
            "model on one device, in place of what its data sheet says. May be given several times."
        ),
    ] = None
    rate: Annotated[
        float | None, typer.Option(help=r"Workflows per second \[the file's busiest ten minutes].")
    ] = None
    budget: Annotated[float | None, typer.Option(help="Limit on the cost, USD an hour.")] = None
    objective: Annotated[
        Literal["cost", "latency", "energy", "tokens"],
        typer.Option(
            help="Least cost within the target, least P95 within --budget and --have, least energy "
            "within the target, or, for work that nobody waits for, most tokens for a dollar."
        ),
    ] = "cost"
    have: Annotated[
        list[str] | None,
        typer.Option(
            help="Limits on devices and resources: h100=8,cores=64,memory=512,disk=2000,"
            "network=3200,kw=12 (memory in GiB, disk in GB, network in Gbit/s). May be given "
            "several times."
        ),
    ] = None
    worker: Annotated[
        str | None, typer.Option(help=r"Needs of a tool between calls \[cores=1,memory=1].")
    ] = None
    today: Annotated[
        str | None,
        typer.Option(
            "--from",
            help='The pool that there is, "4 x a100, 2 x h100-tp2": also say in which steps it '
            "becomes the plan's, keeping the target, and what each costs.",
        ),
    ] = None
    late_usd: Annotated[
        float | None,
        typer.Option(
            min=0, help=r"Cost of a workflow's second beyond p95, USD \[the target is hard]."
        ),
    ] = None
    prices: Annotated[Literal["bought", "rented"], typer.Option(help="Which prices count.")] = (
        "bought"
    )
    years: Annotated[float, typer.Option(help="Years until bought hardware is paid back.")] = (
        TERMS.years
    )
    interest: Annotated[float, typer.Option(help="A year.")] = TERMS.interest
    usd_per_kwh: Annotated[float, typer.Option(help="Price of power.")] = TERMS.usd_per_kwh
    max_devices: Annotated[
        int, typer.Option(min=1, max=64, help="Largest number of devices in one instance.")
    ] = 8
    max_kinds: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Largest number of kinds of instance in one pool; a pair is two."
        ),
    ] = 3
    pairs: Annotated[
        bool, typer.Option("--pairs/--no-pairs", help="Instances for prefill or decode alone, too.")
    ] = True
    split: Annotated[
        bool,
        typer.Option(
            "--split/--no-split", help="An agent's calls may go to several kinds of instance."
        ),
    ] = True
    link_gbit: Annotated[
        float, typer.Option(help="Between the instances of a pair, Gbit/s per device.")
    ] = 400.0
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Plan again with one thing multiplied: load=2, target=0.5, link=2, "
            "price:h100=0.5. May be given several times."
        ),
    ] = None
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Also simulate the pool that is chosen, with Kairos before it. Not pipelines.",
        ),
    ] = False
    deploy: Annotated[
        Literal["compose", "kubernetes"] | None,
        typer.Option(
            help="Print the chosen pool as YAML to deploy, instead of the plan. Not with pairs."
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False


@with_options
def plan_hardware(given: PlanHardware) -> None:
    """Say which hardware workflows should have: what, how many, and what runs where.

    The workflows were recorded (--export), or are the rows of a table for a declared workflow; then
    the answers' lengths are made up within their limits, and --rate is rows a second, counting only
    rows with calls of their own.

    Steps are computed from data sheets and the model's shapes, or from profiles that were measured;
    costs from prices in a catalogue. If no pool meets target and budget, the nearest is shown, and
    the exit status is 3. `docs/how-to/plan-hardware.md` says what the figures rest on.

    Examples:

    kairos plan-hardware --export day.jsonl --target p95=30s

    kairos plan-hardware summarise.yaml --inputs docs.jsonl --rate 2 --target p95=30s

    kairos plan-hardware --export day.jsonl --target p95=30s --prices rented

    kairos plan-hardware --export day.jsonl --hardware h100,gaudi3 --what-if load=2 --json

    kairos plan-hardware --export day.jsonl --target p95=30s --max-devices 1 --simulate

    kairos plan-hardware --export day.jsonl --objective latency --budget 20 --have h100=8

    kairos plan-hardware --export day.jsonl --target p95=30s --from "4 x a100"

    kairos plan-hardware --export day.jsonl --target p95=30s --no-pairs --deploy kubernetes
    """
    from kairos.capacity import (
        HardwareOptions,
        answer_figures,
        deployment_of,
        plan_options,
        print_answer,
    )

    answer = plan_options(
        fill_options(
            HardwareOptions,
            given,
            models=given.model or (),
            targets=given.target or (),
            profiles=given.profile or (),
            terms=fill_options(Terms, given),
        )
    )
    if given.deploy is not None:
        typer.echo(deployment_of(answer, given.deploy), nl=False)
    elif given.as_json:
        typer.echo(json.dumps(answer_figures(answer)))
    else:
        print_answer(answer)
    if not answer.plan.met:
        raise typer.Exit(NOT_MET)
