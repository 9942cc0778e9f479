"""`kairos plan-hardware`: what to buy or rent, what runs where, and how many."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos.capacity import Terms
from kairos.cli.flow_options import FunctionsFile

if TYPE_CHECKING:
    from kairos.cli.hardware.hardware_deploy import Deployment
    from kairos.cli.hardware.hardware_question import HardwareOptions

TERMS = Terms()
NOT_MET = 3  # the exit status where no pool is within target and budget


_Flow = Annotated[
    Path | None,
    typer.Argument(metavar="[FLOW]", help="A declared workflow, over the rows of --inputs."),
]
_Export = Annotated[
    Path | None,
    typer.Option(help="Or a workflow file, such as one that `kairos export` wrote."),
]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        help="p95=30s: 95 of 100 workflows are to take no longer. Of calls: ttft=250ms, "
        "tpot=20ms. May be given several times."
    ),
]
_Model = Annotated[
    list[str] | None,
    typer.Option(
        help="The model, as the catalogue names it, or AGENT=MODEL, or SERVED=MODEL for what "
        r"was served by another name. May be given several times \[what the calls asked for, "
        "or llama-3-8b]."
    ),
]
_Hardware = Annotated[
    str | None,
    typer.Option(help=r"Allowed hardware, by name: h100,gaudi3 \[all with a price]."),
]
_Catalogue = Annotated[
    Path | None,
    typer.Option(help="A file (TOML) with accelerators, models and prices of your own."),
]
_Profile = Annotated[
    list[str] | None,
    typer.Option(
        help="DEVICE=PROFILE, or DEVICE@MODEL=PROFILE: what `kairos calibrate` measured of the "
        "model on one device, in place of what its data sheet says. May be given several times."
    ),
]
_Rate = Annotated[
    float | None,
    typer.Option(help=r"Workflows per second \[the file's busiest ten minutes]."),
]
_Objective = Annotated[
    Literal["cost", "latency", "energy", "tokens"],
    typer.Option(
        help="Least cost within the target, least P95 within --budget and --have, least energy "
        "within the target, or, for work that nobody waits for, most tokens for a dollar."
    ),
]
_Have = Annotated[
    list[str] | None,
    typer.Option(
        help="Limits on devices and resources: h100=8,cores=64,memory=512,disk=2000,"
        "network=3200,kw=12 (memory in GiB, disk in GB, network in Gbit/s). May be given "
        "several times."
    ),
]
_Worker = Annotated[
    str | None,
    typer.Option(help=r"Needs of a tool between calls \[cores=1,memory=1]."),
]
_Today = Annotated[
    str | None,
    typer.Option(
        "--from",
        help='The pool that there is, "4 x a100, 2 x h100-tp2": also say in which steps it '
        "becomes the plan's, keeping the target, and what each costs.",
    ),
]
_LateUsd = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=r"Cost of a workflow's second beyond p95, USD \[the target is hard].",
    ),
]
_Prices = Annotated[Literal["bought", "rented"], typer.Option(help="Which prices count.")]
_Years = Annotated[float, typer.Option(help="Years until bought hardware is paid back.")]
_MaxDevices = Annotated[
    int, typer.Option(min=1, max=64, help="Largest number of devices in one instance.")
]
_MaxKinds = Annotated[
    int,
    typer.Option(
        min=1, max=64, help="Largest number of kinds of instance in one pool; a pair is two."
    ),
]
_Pairs = Annotated[
    bool,
    typer.Option("--pairs/--no-pairs", help="Instances for prefill or decode alone, too."),
]
_Split = Annotated[
    bool,
    typer.Option(
        "--split/--no-split", help="An agent's calls may go to several kinds of instance."
    ),
]
_LinkGbit = Annotated[
    float, typer.Option(help="Between the instances of a pair, Gbit/s per device.")
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        help="Plan again with one thing multiplied: load=2, target=0.5, link=2, "
        "price:h100=0.5. May be given several times."
    ),
]
_Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help="Also simulate the pool that is chosen, with Kairos before it. Not pipelines.",
    ),
]
_Deploy = Annotated[
    Literal["compose", "kubernetes"] | None,
    typer.Option(
        help="Print the chosen pool as YAML to deploy, instead of the plan. Not with pairs."
    ),
]

# Options that are asked as they are given.
_AS_GIVEN = (
    *("export", "flow", "inputs", "functions", "precision", "hardware", "catalogue", "rate"),
    *("budget", "late_usd", "max_devices", "max_kinds", "split", "pairs", "link_gbit"),
    *("objective", "worker", "today"),
)


def plan_hardware(
    flow: _Flow = None,
    export: _Export = None,
    inputs: Annotated[Path | None, typer.Option(help="The table of FLOW's rows.")] = None,
    functions: FunctionsFile = None,
    target: _Target = None,
    model: _Model = None,
    precision: Annotated[str, typer.Option(help="Precision of the weights: bf16, fp8.")] = "bf16",
    hardware: _Hardware = None,
    catalogue: _Catalogue = None,
    profile: _Profile = None,
    rate: _Rate = None,
    budget: Annotated[float | None, typer.Option(help="Limit on the cost, USD an hour.")] = None,
    objective: _Objective = "cost",
    have: _Have = None,
    worker: _Worker = None,
    today: _Today = None,
    late_usd: _LateUsd = None,
    prices: _Prices = "bought",
    years: _Years = TERMS.years,
    interest: Annotated[float, typer.Option(help="A year.")] = TERMS.interest,
    usd_per_kwh: Annotated[float, typer.Option(help="Price of power.")] = TERMS.usd_per_kwh,
    max_devices: _MaxDevices = 8,
    max_kinds: _MaxKinds = 3,
    pairs: _Pairs = True,
    split: _Split = True,
    link_gbit: _LinkGbit = 400.0,
    what_if: _WhatIf = None,
    simulate: _Simulate = False,
    deploy: _Deploy = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
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
    given = locals()
    from kairos.cli.hardware.hardware_question import HardwareOptions

    options = HardwareOptions(
        models=model or (),
        targets=target or (),
        profiles=profile or (),
        have=have or (),
        terms=Terms(prices=prices, years=years, interest=interest, usd_per_kwh=usd_per_kwh),
        **{name: given[name] for name in _AS_GIVEN},
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
    from msgspec.structs import replace

    from kairos.capacity import give_reasons, plan_hardware, plan_migration
    from kairos.cli.hardware import hardware_question, hardware_shown, pool_simulation
    from kairos.cli.hardware.hardware_deploy import deployment

    workflows = hardware_question.planned_workflows(options)
    asked = hardware_question.question(options, workflows)
    changes = {text: hardware_question.changed(asked, text) for text in what_if}
    with hardware_shown.quiet_solver():
        found = plan_hardware(asked)
        more = hardware_shown.Additions(
            others={text: plan_hardware(changed) for text, changed in changes.items()},
            why=give_reasons(asked, found) if found.met and asked.objective == "cost" else None,
        )
    if options.today is not None:
        from_today = hardware_question.todays_pool(options, asked)
        more = replace(more, steps=plan_migration(from_today[0], found, from_today[1]))
    if simulate:
        more = replace(more, times=pool_simulation.simulated_plan(asked, found, workflows))
    if deploy is not None:
        typer.echo(deployment(found.chosen, asked.offer.devices, deploy), nl=False)
    elif as_json:
        typer.echo(json.dumps(hardware_shown.as_figures(asked, found, more)))
    else:
        hardware_shown.show(asked, found, more)
    if not found.met:
        raise typer.Exit(NOT_MET)
