"""`kairos demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kairos.cli.options import PLACEMENT_HELP, POLICY_HELP, SERVE, RecordAsJson, with_options
from kairos.cli.running import run
from kairos.core import SetupError
from kairos.settings import EngineSettings, load_settings, parse_engine

if TYPE_CHECKING:
    from kairos.cli.demos.engines import Kind


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="llama: two llama.cpp servers with a small real model; sim: two stand-ins; vllm: "
            "two vLLM instances on the CPU, whose answers are noise; or "
            r"URL\[,max_num_seqs=N]\[,kv_tokens=N] of an engine that runs; repeat for each."
        ),
    ] = None
    apps: Annotated[str, typer.Option(help="Applications, of qa, rg and cg.")] = "qa,rg,cg"
    workflows: Annotated[int, typer.Option(min=1, max=10_000, help="Tasks to submit.")] = 36
    rate: Annotated[float, typer.Option(help="Tasks per second, in the long run.")] = 1.0
    arrivals: Annotated[
        str, typer.Option(help="azure-conv or azure-code (as bursty as these traces), or poisson.")
    ] = "azure-conv"
    inputs: Annotated[
        str,
        typer.Option(
            help="Real inputs instead of the built-in ones: data sets that have been fetched, such "
            "as gsm8k_test,mmlu_history,TruthfulQA,humaneval-python (see: kairos traces list)."
        ),
    ] = ""
    policy: Annotated[str, typer.Option(help=POLICY_HELP)] = SERVE.policy
    versus: Annotated[
        str | None,
        typer.Option(help="Another policy: the same tasks run under it too, and are compared."),
    ] = None
    placement: Annotated[str, typer.Option(help=PLACEMENT_HELP)] = SERVE.placement
    seed: Annotated[
        int, typer.Option(help="Seed of tasks' order, arrivals, and stand-ins' replies.")
    ] = 1
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which what has not finished is given up.")
    ] = 150.0
    bus: Annotated[
        str, typer.Option(help=r"kafka://HOST:PORT\[,HOST:PORT]: messages travel over Kafka.")
    ] = SERVE.bus
    record: Annotated[
        Path | None, typer.Option(help="Keep the (first) run as a workflow file, for replay.")
    ] = None
    as_json: RecordAsJson = False


@with_options
def demo(given: Demo) -> None:
    """Run three multi-agent applications on real engines behind Kairos.

    QA routes a question to an expert, RG researches and writes a report, CG writes code with five
    roles and runs its tests. Answers and figures are printed at the end.

    Example: kairos demo --engine sim --policy kairos --versus fcfs
    """
    if given.versus == given.policy:
        raise SetupError(f"--versus '{given.versus}' compares it with itself: name another policy")
    kind, engines = _engines(given.engine or ["llama"])
    arguments = {"port": 0, "admin_port": 0, "engine": engines}
    arguments |= {"placement": given.placement, "bus": given.bus}
    policies = [given.policy] if given.versus is None else [given.policy, given.versus]
    settings = [load_settings(None, {}, {**arguments, "policy": name}) for name in policies]
    from kairos.cli.demos import command

    if not run(command.demo(settings, kind, given)):
        raise typer.Exit(1)


def _engines(named: list[str]) -> "tuple[Kind | None, list[EngineSettings]]":
    match named:
        case ["llama" | "sim" | "vllm" as kind]:
            return kind, []
    return None, [parse_engine(text) for text in named]
