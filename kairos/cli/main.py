"""The `kairos` command: reads settings, puts things together, starts them."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from kairos import __version__, config
from kairos.cli import agents, calibrate, replay, simulate
from kairos.demo.options import Options
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import KairosError, SetupError
from kairos.live.process import tuning
from kairos.scheduler.policies import POLICIES

if TYPE_CHECKING:
    from kairos.demo.engines import Kind
    from kairos.live.service import Service
    from kairos.live.workers.supervisor import Supervisor

logger = logging.getLogger(__name__)

Load = Callable[[], config.Settings]

SERVE, DEMO = config.Settings(), Options()  # the defaults
POLICY_HELP = (
    rf"Order of the queue \[{SERVE.policy}: least work left first]: {', '.join(sorted(POLICIES))}."
)
BUS_HELP = (
    rf"Where Kairos's processes and agents meet \[{SERVE.bus}: in this process]: "
    r"kafka://HOST:PORT\[,HOST:PORT]. Credentials stand in the file, under \[kafka]."
)
POOL_HELP = rf"On a bus: the engines for which decisions are made in one place \[{SERVE.pool}]."
PLACEMENT_HELP = f"Choice of the instance: {', '.join(sorted(PLACEMENTS))}."

app = typer.Typer(
    help="Kairos stands between multi-agent LLM applications and a pool of vLLM instances: it "
    "queues their calls, decides their order, and chooses an instance for each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"kairos {__version__}")
        raise typer.Exit


@app.command()
def serve(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="An OpenAI-compatible upstream: URL[,max_num_seqs=N][,kv_tokens=N]; repeat for "
            "each. Also [,priority=yes|no], whether vLLM's scheduling policy is priority, and "
            "[,token_us=N], microseconds per token of an answer. What an engine tells itself wins."
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP)] = None,
    placement: Annotated[str | None, typer.Option(help=PLACEMENT_HELP)] = None,
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None,
    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None,
    host: Annotated[str | None, typer.Option(help=f"Address to listen on [{SERVE.host}].")] = None,
    port: Annotated[
        int | None, typer.Option(help=f"Port to listen on [{SERVE.port}]; 0: any.")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the operators' routes, by which engines are added and removed, too; on "
            f"loopback [{SERVE.admin_port}]."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help=f"Use more than one core: so many processes take connections and perform calls, "
            rf"and one more decides for all of them \[{SERVE.workers}: a single process does both]."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Keep facts and decisions (no bodies) in this directory.")
    ] = None,
    learnt: Annotated[
        Path | None,
        typer.Option(
            help="Keep what is learnt of agents in this file, and begin with what it says "
            r"\[learnt.json in the log's directory, if there is one]."
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of these, and API keys.")
    ] = None,
) -> None:
    """Serve OpenAI's API in front of one or more engines.

    Every option can also stand in the file, or in the environment as KAIROS_PORT and so on. The
    command line wins over the environment, and that over the file. On SIGHUP the file is read
    again: engines, API keys and limits on bodies change at once, the rest when it is restarted.

    Example: kairos serve --engine http://gpu1:8000 --engine http://gpu2:8000
    """
    arguments = {
        "policy": policy,
        "placement": placement,
        "bus": bus,
        "pool": pool,
        "host": host,
        "port": port,
        "admin_port": admin_port,
        "workers": workers,
        "log_dir": str(log) if log else None,
        "learnt_path": str(learnt) if learnt else None,
        "engine": [config.parse_engine(text) for text in engine] if engine else None,
    }
    load = partial(_engine_settings, "serve", config_file, arguments)
    settings = load()
    if settings.bus != "memory" and settings.learnt_path is not None:
        raise SetupError("leave out --learnt: with --bus, what is learnt is on kairos.profiles")
    serving = _supervise if settings.workers else _serve
    _run(serving(settings, load if config_file is not None else None))


async def _serve(settings: config.Settings, load: Load | None) -> None:
    from kairos.live.service import running

    stop = _stop_signal()
    _on_hangup(lambda: None)  # what it is to read has just been read
    async with running(settings) as service:
        tuning.collect_less_often()
        tuning.switch_threads_often()
        tuning.allow_many_connections()
        await _until_stopped(service, settings, load, stop)


async def _supervise(settings: config.Settings, load: Load | None) -> None:
    from kairos.live.workers.supervisor import supervising

    stop = _stop_signal()
    _on_hangup(lambda: None)  # what it is to read has just been read
    async with supervising(settings) as supervisor:
        await _until_stopped(supervisor, settings, load, stop)


async def _until_stopped(
    service: "Service | Supervisor",
    settings: config.Settings,
    load: Load | None,
    stop: asyncio.Event,
) -> None:
    typer.echo(f"kairos: serving on {service.url}/v1, operators' routes on {service.admin_url}")
    if not config.is_loopback(settings.host) and not settings.key:
        typer.echo("kairos: no API keys are configured, so anyone who reaches it may call")
    _on_hangup(partial(_reload, service, load))
    await stop.wait()
    typer.echo("kairos: stopping; running calls may finish")


def _engine_settings(
    command: str, config_file: Path | None, arguments: Mapping[str, object]
) -> config.Settings:
    settings = config.load(config_file, os.environ, arguments)
    if not settings.engine:
        raise SetupError(f"name at least one engine: kairos {command} --engine http://HOST:PORT")
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return settings


@app.command()
def balance(
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None,
    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine of the pool, as `kairos serve` takes it; repeat."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP)] = None,
    placement: Annotated[str | None, typer.Option(help=PLACEMENT_HELP)] = None,
    host: Annotated[
        str | None, typer.Option(help=f"Address of /health and /metrics [{SERVE.host}].")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of /health and /metrics; 0: any.")] = 8003,
    log: Annotated[
        Path | None, typer.Option(help="Keep facts and decisions (no bodies) in this directory.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of these, and [kafka].")
    ] = None,
) -> None:
    """Decide for a pool of engines over Kafka, or stand by, without serving clients over HTTP.

    Of all `kairos balance` and `kairos serve --bus` of a pool one decides at a time; if it dies,
    another takes over within seconds, with the queue as it was. All must name the same engines;
    on SIGHUP those in the file are read again.

    Example: kairos balance --bus kafka://broker:9092 --engine http://gpu1:8000
    """
    arguments = {
        "bus": bus,
        "pool": pool,
        "engine": [config.parse_engine(text) for text in engine] if engine else None,
        "policy": policy,
        "placement": placement,
        "host": host,
        "port": port,
        "log_dir": str(log) if log else None,
    }
    load = partial(_engine_settings, "balance", config_file, arguments)
    settings = load()
    if settings.bus == "memory":
        raise SetupError("name the bus: kairos balance --bus kafka://HOST:PORT")
    _run(_balance(settings, load if config_file is not None else None))


async def _balance(settings: config.Settings, load: Load | None) -> None:
    from kairos.live.service import balancing

    stop = _stop_signal()
    _on_hangup(lambda: None)  # what it is to read has just been read
    async with balancing(settings) as service:
        tuning.collect_less_often()
        tuning.switch_threads_often()
        tuning.allow_many_connections()
        typer.echo(f"kairos: pool {settings.pool} on {settings.bus}; figures on {service.url}")
        _on_hangup(partial(_reload, service, load))
        await stop.wait()
        typer.echo("kairos: stopping; running calls may finish")


@app.command()
def orchestrate(
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None,
    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None,
    host: Annotated[str | None, typer.Option(help=f"Address to listen on [{SERVE.host}].")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any.")] = 8002,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file with any of these, [kafka], and API keys."),
    ] = None,
) -> None:
    """Follow workflows over Kafka, learn from those that end, and publish it to all balancers.

    Of several one works at a time; if it dies, another reads again from where workflows are open.
    Shows workflows and agents over HTTP, so that `kairos explain` works; /metrics and /health too.

    Example: kairos orchestrate --bus kafka://broker:9092
    """
    arguments = {"bus": bus, "pool": pool, "host": host, "port": port}
    settings = config.load(config_file, os.environ, arguments)
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _run(_orchestrate(settings))


async def _orchestrate(settings: config.Settings) -> None:
    from kairos.live.orchestrate.service import orchestrating

    stop = _stop_signal()
    async with orchestrating(settings) as service:
        tuning.collect_less_often()
        typer.echo(f"kairos: workflows and agents of {settings.bus} on {service.url}/v1")
        await stop.wait()
        typer.echo("kairos: stopping; what was learnt is published")


def _stop_signal() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return stop


def _on_hangup(act: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)


def _reload(service: "Service | Supervisor", load: Load | None) -> None:
    if load is None:
        logger.warning("there is nothing to read again: it was started without --config")
    else:
        service.reload(load)


@app.command()
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
        int, typer.Option(help="Of the order of tasks, their arrivals, and stand-ins' replies.")
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
    settings = [config.load(None, {}, {**arguments, "policy": name}) for name in policies]
    _run(_demo(settings, kind, options, as_json=as_json))


def _engines(named: list[str]) -> "tuple[Kind | None, list[config.EngineSettings]]":
    match named:
        case ["llama" | "sim" | "vllm" as kind]:
            return kind, []
    return None, [config.parse_engine(text) for text in named]


async def _demo(
    settings: list[config.Settings], kind: "Kind | None", options: Options, *, as_json: bool
) -> None:
    from kairos.demo import command

    if not await command.demo(settings, kind, options, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def explain(
    workflow_id: str,
    url: Annotated[
        str, typer.Option(help="A running Kairos.")
    ] = f"http://{SERVE.host}:{SERVE.port}",
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds your API key.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Not from a running Kairos, but from its log's directory.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="With --log: whose workflow, where several have the id.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """Show a workflow's calls: what led to each, and why it went when and where it did."""
    import msgspec

    from kairos.tools import explain, explained

    if log is not None:
        view = explain.from_log(log, tenant, workflow_id)
    else:
        key = config.api_key(api_key_env, os.environ)
        view = asyncio.run(explain.from_service(url, key, workflow_id))
    if as_json:
        typer.echo(msgspec.json.encode(view).decode())
    else:
        explained.show(view)


@app.command()
def export(
    since: Annotated[
        str, typer.Option(help="A duration (30s, 15m, 2h, 7d), a date or an instant; or all.")
    ],
    log: Annotated[
        Path, typer.Option(envvar="KAIROS_LOG_DIR", help="The directory of a serve --log.")
    ],
    output: Annotated[
        Path, typer.Option(help="The file to write; as gzip, if its name ends in .gz.")
    ] = Path("workflows.jsonl"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Turn the log of a Kairos into a workflow file, for replay and simulation.

    Workflows that began at that time or later are written, each whole; those that began before it,
    or before the log, or have a call that has not ended, are left out. With `all`, those that began
    before the log are taken as they are.
    """
    from kairos.live.process.clock import WallClock
    from kairos.tools import export

    since_at = export.parse_since(since, WallClock().now())
    exported = export.export(log, since_at, output)
    figures = {"calls": exported.calls, "workflows": exported.workflows}
    typer.echo(json.dumps(figures) if as_json else f"{output}:{_outline(figures, '  ')}")


app.command()(simulate.simulate)
app.command()(replay.replay)
app.command()(calibrate.calibrate)

app.add_typer(agents.app, name="agents", no_args_is_help=True)

traces_app = typer.Typer(help="Real arrivals and inputs: what there is, and fetching it.")
app.add_typer(traces_app, name="traces", no_args_is_help=True)


@traces_app.command("list")
def traces_list() -> None:
    """List the data sets that can be fetched."""
    from kairos.tools import traces

    for name, data_set in traces.catalogue().items():
        typer.echo(f"{name:24} {data_set.rows:7,} rows  {data_set.licence}")


@traces_app.command("fetch")
def traces_fetch(
    name: str,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A local copy: the file, plain or gzip, or its directory."),
    ] = None,
) -> None:
    """Fetch a data set from its pinned URL, and check its size and SHA-256."""
    from kairos.tools import traces

    typer.echo(traces.fetch(name, source))


@traces_app.command("describe")
def traces_describe(
    path: Path,
    as_json: Annotated[bool, typer.Option("--json", help="The same figures as JSON.")] = False,
) -> None:
    """Describe a workflow file (calls and tokens per app) or an Azure trace (arrivals)."""
    import msgspec

    from kairos.tools import traces

    figures = msgspec.to_builtins(traces.describe(path))
    typer.echo(json.dumps(figures) if as_json else _outline(figures))


@traces_app.command("generate")
def traces_generate(
    app: Annotated[
        str, typer.Argument(help="qa, rg or cg, or the file of a model of your own (.toml).")
    ],
    path: Annotated[Path, typer.Argument(help="The workflow file to write; gzip if it ends so.")],
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="Workflows.")] = 50,
    seed: Annotated[int, typer.Option(help="Another one, other workflows.")] = 1,
) -> None:
    """Write a workflow file that a generative model of an application makes.

    The same arguments give the same file.
    """
    from itertools import chain

    from kairos.workload import write_workflows
    from kairos.workload.application import application, generated_calls

    write_workflows(path, chain.from_iterable(generated_calls(application(app), count, seed)))


def _outline(figures: object, indent: str = "") -> str:
    """Nested figures, one a line."""
    if not isinstance(figures, dict):
        return f" {figures}"
    lines = [f"{indent}{name}:{_outline(value, indent + '  ')}" for name, value in figures.items()]
    return ("\n" if indent else "") + "\n".join(lines)


def _run(main: Coroutine[None, None, None]) -> None:
    with (
        agents.first_of_many(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(main)


def main() -> None:
    try:
        app()
    except KairosError as error:
        sys.exit(f"kairos: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
