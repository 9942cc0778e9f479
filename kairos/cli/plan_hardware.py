"""`kairos plan-hardware`: what to buy or rent, what runs where, and how many."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos.cli.flow_options import FunctionsFile
from kairos.planner.ownership import Terms

if TYPE_CHECKING:
    from kairos.tools.hardware_deploy import Deployment
    from kairos.tools.hardware_question import HardwareOptions

TERMS = Terms()
NOT_MET = 3  # the exit status where no pool is within target and budget


def plan_hardware(
    flow: Annotated[
        Path | None,
        typer.Argument(metavar="[FLOW]", help="A declared workflow, over the rows of --inputs."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Or a workflow file, such as one that `kairos export` wrote."),
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="With FLOW: the table of rows.")] = None,
    functions: FunctionsFile = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="p95=30s: 95 of 100 workflows are to take no longer. Of calls: ttft=250ms, "
            "tpot=20ms. May be given several times."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model, as the catalogue names it, or AGENT=MODEL, or SERVED=MODEL for what "
            r"was served by another name. May be given several times \[what the calls asked for, "
            "or llama-3-8b]."
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="Of its weights: bf16, fp8.")] = "bf16",
    hardware: Annotated[
        str | None,
        typer.Option(help=r"What may be used, by name: h100,gaudi3 \[all that has a price]."),
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="A file (TOML) with accelerators, models and prices of your own."),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="DEVICE=PROFILE, or DEVICE@MODEL=PROFILE: what `kairos calibrate` measured of the "
            "model on one device, in place of what its data sheet says. May be given several times."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help=r"Workflows per second \[those of the file's busiest ten minutes]."),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="At most, USD an hour.")] = None,
    late_usd: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=r"What a workflow's second beyond p95 is worth, USD \[the target is hard].",
        ),
    ] = None,
    prices: Annotated[
        Literal["bought", "rented"], typer.Option(help="Which prices count.")
    ] = "bought",
    years: Annotated[float, typer.Option(help="Until what is bought is paid back.")] = TERMS.years,
    interest: Annotated[float, typer.Option(help="A year.")] = TERMS.interest,
    usd_per_kwh: Annotated[float, typer.Option(help="Of power.")] = TERMS.usd_per_kwh,
    max_devices: Annotated[
        int, typer.Option(min=1, max=64, help="Of one instance, in parallel.")
    ] = 8,
    max_kinds: Annotated[
        int, typer.Option(min=1, max=64, help="Of instances in one pool; a pair is two.")
    ] = 3,
    pairs: Annotated[
        bool,
        typer.Option("--pairs/--no-pairs", help="Instances for prefill or decode alone, too."),
    ] = True,
    split: Annotated[
        bool,
        typer.Option(
            "--split/--no-split", help="An agent's calls may go to several kinds of instance."
        ),
    ] = True,
    link_gbit: Annotated[
        float, typer.Option(help="Between the instances of a pair, Gbit/s per device.")
    ] = 400.0,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Plan again with one thing multiplied: load=2, target=0.5, link=2, "
            "price:h100=0.5. May be given several times."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Also simulate the pool that is chosen, with Kairos before it. Not pipelines.",
        ),
    ] = False,
    deploy: Annotated[
        Literal["compose", "kubernetes"] | None,
        typer.Option(
            help="Print the chosen pool as YAML to deploy, instead of the plan. Not with pairs."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say which hardware workflows should have: what, how many, and what runs where.

    The workflows were recorded (--export), or they are the rows of a table that a declared workflow
    goes over; then the answers' lengths are made up within their limits, and --rate is rows a
    second, of those that have calls of their own.

    Steps are computed from data sheets and the model's shapes, or from profiles that were measured;
    costs from prices in a catalogue. Where no pool is within target and budget, the nearest is
    shown, and the exit status is 3. `docs/how-to/plan-hardware.md` says what the figures rest on.

    Examples:

    kairos plan-hardware --export day.jsonl --target p95=30s

    kairos plan-hardware summarise.yaml --inputs docs.jsonl --rate 2 --target p95=30s

    kairos plan-hardware --export day.jsonl --target p95=30s --prices rented

    kairos plan-hardware --export day.jsonl --hardware h100,gaudi3 --what-if load=2 --json

    kairos plan-hardware --export day.jsonl --target p95=30s --max-devices 1 --simulate

    kairos plan-hardware --export day.jsonl --target p95=30s --no-pairs --deploy kubernetes
    """
    from kairos.tools.hardware_question import HardwareOptions

    options = HardwareOptions(
        export=export,
        flow=flow,
        inputs=inputs,
        functions=functions,
        models=model or (),
        targets=target or (),
        precision=precision,
        hardware=hardware,
        catalogue=catalogue,
        profiles=profile or (),
        rate=rate,
        budget=budget,
        late_usd=late_usd,
        max_devices=max_devices,
        max_kinds=max_kinds,
        split=split,
        pairs=pairs,
        link_gbit=link_gbit,
        terms=Terms(prices=prices, years=years, interest=interest, usd_per_kwh=usd_per_kwh),
    )
    _answer(options, what_if or (), deploy, simulate=simulate, as_json=as_json)


def _answer(
    options: "HardwareOptions",
    what_if: Sequence[str],
    deploy: "Deployment | None",
    *,
    simulate: bool,
    as_json: bool,
) -> None:
    from kairos.planner.hardware_plan import plan
    from kairos.tools import hardware_question, hardware_shown, pool_simulation
    from kairos.tools.hardware_deploy import deployment

    workflows = hardware_question.planned_workflows(options)
    asked = hardware_question.question(options, workflows)
    changes = {text: hardware_question.changed(asked, text) for text in what_if}
    with hardware_shown.quiet_solver():
        found = plan(asked)
        others = {text: plan(changed) for text, changed in changes.items()}
    times = pool_simulation.simulated_plan(asked, found, workflows) if simulate else None
    if deploy is not None:
        typer.echo(deployment(found.chosen, asked.offer.devices, deploy), nl=False)
    elif as_json:
        typer.echo(json.dumps(hardware_shown.as_figures(asked, found, others, times)))
    else:
        hardware_shown.show(asked, found, others, times)
    if not found.met:
        raise typer.Exit(NOT_MET)
