"""`kairos demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli.demos.options import Options
from kairos.cli.options import PLACEMENT_HELP, POLICY_HELP, SERVE
from kairos.cli.running import run
from kairos.core import SetupError
from kairos.settings import EngineSettings, load_settings, parse_engine

if TYPE_CHECKING:
    from kairos.cli.demos.engines import Kind

DEMO = Options()  # the defaults


def demo(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="llama: two llama.cpp servers with a small real model; sim: two stand-ins; vllm: "
            "two vLLM instances on the CPU, whose answers are noise; or "
            r"URL\[,max_num_seqs=N]\[,kv_tokens=N] of an engine that runs; repeat for each."
        ),
    ] = None,
    apps: Annotated[str, typer.Option(help="Applications, of qa, rg and cg.")] = ",".join(
        DEMO.apps
    ),
    workflows: Annotated[
        int, typer.Option(min=1, max=10_000, help="Tasks to submit.")
    ] = DEMO.workflows,
    rate: Annotated[
        float, typer.Option(help="Tasks per second, in the long run.")
    ] = DEMO.rate_per_s,
    arrivals: Annotated[
        str, typer.Option(help="azure-conv or azure-code (as bursty as these traces), or poisson.")
    ] = DEMO.arrivals,
    inputs: Annotated[
        str,
        typer.Option(
            help="Real inputs instead of the built-in ones: data sets that have been fetched, such "
            "as gsm8k_test,mmlu_history,TruthfulQA,humaneval-python (see: kairos traces list)."
        ),
    ] = ",".join(DEMO.inputs),
    policy: Annotated[str, typer.Option(help=POLICY_HELP)] = SERVE.policy,
    versus: Annotated[
        str | None,
        typer.Option(help="Another policy: the same tasks run under it too, and are compared."),
    ] = None,
    placement: Annotated[str, typer.Option(help=PLACEMENT_HELP)] = SERVE.placement,
    seed: Annotated[
        int, typer.Option(help="Seed of tasks' order, arrivals, and stand-ins' replies.")
    ] = DEMO.seed,
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which what has not finished is given up.")
    ] = DEMO.time_limit_s,
    bus: Annotated[
        str, typer.Option(help=r"kafka://HOST:PORT\[,HOST:PORT]: messages travel over Kafka.")
    ] = SERVE.bus,
    record: Annotated[
        Path | None, typer.Option(help="Keep the (first) run as a workflow file, for replay.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the metrics record, and nothing else.")
    ] = False,
) -> None:
    """Run three multi-agent applications on real engines behind Kairos.

    QA routes a question to an expert, RG researches and writes a report, CG writes code with five
    roles and runs its tests. Answers and figures are printed at the end.

    Example: kairos demo --engine sim --policy kairos --versus fcfs
    """
    if versus == policy:
        raise SetupError(f"--versus '{versus}' compares it with itself: name another policy")
    options = Options(
        apps=tuple(dict.fromkeys(apps.split(","))),
        workflows=workflows,
        rate_per_s=rate,
        arrivals=arrivals,
        seed=seed,
        inputs=tuple(name for name in inputs.split(",") if name),
        time_limit_s=time_limit,
        record=record,
    )
    kind, given = _engines(engine or ["llama"])
    arguments = {"port": 0, "admin_port": 0, "placement": placement, "engine": given, "bus": bus}
    policies = [policy] if versus is None else [policy, versus]
    settings = [load_settings(None, {}, {**arguments, "policy": name}) for name in policies]
    from kairos.cli.demos import command

    if not run(command.demo(settings, kind, options, as_json=as_json)):
        raise typer.Exit(1)


def _engines(named: list[str]) -> "tuple[Kind | None, list[EngineSettings]]":
    match named:
        case ["llama" | "sim" | "vllm" as kind]:
            return kind, []
    return None, [parse_engine(text) for text in named]
