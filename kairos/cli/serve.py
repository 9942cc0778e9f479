"""The long-running commands `kairos serve`, `balance` and `orchestrate`."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kairos.cli.options import (
    BUS_HELP,
    PLACEMENT_HELP,
    POLICY_HELP,
    POOL_HELP,
    SERVE,
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    with_options,
)
from kairos.cli.running import has_files, on_hangup, run, stop_signal
from kairos.core import SetupError
from kairos.host import allow_many_connections, collect_less_often, switch_threads_often
from kairos.settings import Settings, is_loopback, load_settings, parse_engine, split_list

if TYPE_CHECKING:
    from kairos.cluster import Reload, Supervisor
    from kairos.service import Service

# No thread may run in a process that is forked; numpy's library starts one for each core.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
Load = Callable[[], Settings]


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="An OpenAI-compatible upstream: URL[,max_num_seqs=N][,kv_tokens=N]; repeat for "
            "each. Also [,priority=yes|no], vLLM's scheduling policy; [,token_us=N], µs per token; "
            "[,phase=both|prefill|decode][,usd_per_hour=N]. Values reported by the engine take "
            "precedence. For TLS to it: [,ca=FILE][,client_certificate=FILE][,client_key=FILE]."
        ),
    ] = None
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP)] = None
    placement: Annotated[str | None, typer.Option(help=PLACEMENT_HELP)] = None
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None
    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None
    host: Annotated[str | None, typer.Option(help=f"Address to listen on [{SERVE.host}].")] = None
    port: Annotated[int | None, typer.Option(help=f"Port to listen on [{SERVE.port}]; 0: any.")] = (
        None
    )
    admin_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the operators' routes, by which engines are added and removed, too; on "
            f"loopback [{SERVE.admin_port}]."
        ),
    ] = None
    admin_hosts: Annotated[
        str | None,
        typer.Option(
            help="NAME[,NAME]: host names for requests to the operators' routes, in addition to "
            "localhost and addresses."
        ),
    ] = None
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            help="NAME[,NAME]: host names by which callers may ask while no API key is asked for, "
            "in addition to localhost, this machine's name and any address; *: any."
        ),
    ] = None
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: TlsClientCa = None
    workers: Annotated[
        int | None,
        typer.Option(
            help=f"Use more than one core: number of processes that take connections and perform "
            "calls; one more decides for all of them "
            rf"\[{SERVE.workers}: a single process does both]."
        ),
    ] = None
    log: Annotated[
        Path | None, typer.Option(help="Keep facts and decisions (no bodies) in this directory.")
    ] = None
    learnt: Annotated[
        Path | None,
        typer.Option(
            help="Keep what is learnt of agents in this file, and begin with what it says "
            r"\[learnt.json in the log's directory, if there is one]."
        ),
    ] = None
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of these, and API keys.")
    ] = None


@with_options
def serve(given: Serve) -> None:
    """Serve OpenAI's API in front of one or more engines.

    Every option can also be in the file, or in the environment as KAIROS_PORT and so on. The
    command line overrides the environment, which overrides the file. On SIGHUP the file is read
    again, with the files of `keys_path` and TLS: engines, API keys, the policy, certificates and
    limits on bodies change at once, other settings after a restart.

    Example: kairos serve --engine http://gpu1:8000 --engine http://gpu2:8000
    """
    arguments = {
        **_arguments(given),
        "admin_hosts": split_list(given.admin_hosts) if given.admin_hosts else None,
        "allowed_hosts": split_list(given.allowed_hosts) if given.allowed_hosts else None,
    }
    load = partial(_engine_settings, "serve", given.config_file, arguments)
    settings = load()
    if settings.bus != "memory" and settings.learnt_path is not None:
        raise SetupError("leave out --learnt: with --bus, what is learnt is on kairos.profiles")
    again = load if has_files(given.config_file, settings) else None
    if settings.workers:
        os.environ.setdefault(_BLAS_THREADS, "1")
        run(_supervise(settings, again), asyncio.new_event_loop)
    else:
        run(_serve(settings, again))


async def _serve(settings: Settings, load: Load | None) -> None:
    from kairos.service import running

    stop = stop_signal()
    async with running(settings) as service:
        collect_less_often()
        switch_threads_often()
        allow_many_connections()
        await _serve_until(stop, service, settings, load)


async def _supervise(settings: Settings, load: Load | None) -> None:
    from kairos.cluster import supervised_workers

    stop = stop_signal()
    async with supervised_workers(settings) as supervisor:
        await _serve_until(stop, supervisor, settings, load)


async def _serve_until(
    stop: asyncio.Event, service: "Service | Supervisor", settings: Settings, load: Load | None
) -> None:
    typer.echo(f"kairos: serving on {service.url}/v1, operators' routes on {service.admin_url}")
    if not is_loopback(settings.host) and not settings.asks_for_keys:
        typer.echo("kairos: no API keys are configured, so anyone who reaches it may call")
    await _until_stopped(stop, service.reload, load, "running calls may finish")


async def _until_stopped(
    stop: asyncio.Event, reload: "Reload", load: Load | None, ending: str
) -> None:
    reload.load = load
    on_hangup(reload.on_hangup)
    await stop.wait()
    typer.echo(f"kairos: stopping; {ending}")


def _engine_settings(
    command: str, config_file: Path | None, arguments: Mapping[str, object]
) -> Settings:
    settings = load_settings(config_file, os.environ, arguments)
    if not settings.engine:
        raise SetupError(f"name at least one engine: kairos {command} --engine http://HOST:PORT")
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    return settings


def _arguments(given: "Serve | Balance") -> dict[str, object]:
    """Return the options as settings, by their names there."""
    found: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(given).items():
        setting = {"log": "log_dir", "learnt": "learnt_path"}.get(name, name)
        found[setting] = str(value) if isinstance(value, Path) else value
    del found["config_file"]
    if given.engine:
        found["engine"] = [parse_engine(text) for text in given.engine]
    return found


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None
    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine of the pool, as `kairos serve` takes it; repeat."),
    ] = None
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP)] = None
    placement: Annotated[str | None, typer.Option(help=PLACEMENT_HELP)] = None
    host: Annotated[
        str | None, typer.Option(help=f"Address of /health and /metrics [{SERVE.host}].")
    ] = None
    port: Annotated[int, typer.Option(help="Port of /health and /metrics; 0: any.")] = 8003
    log: Annotated[
        Path | None, typer.Option(help="Keep facts and decisions (no bodies) in this directory.")
    ] = None
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of these, and [kafka].")
    ] = None


@with_options
def balance(given: Balance) -> None:
    """Decide for a pool of engines over Kafka, or stand by, without serving clients over HTTP.

    Of all `kairos balance` and `kairos serve --bus` of a pool one decides at a time; if it dies,
    another takes over within seconds, with the queue as it was. All must name the same engines;
    on SIGHUP the engines in the file are reloaded.

    Example: kairos balance --bus kafka://broker:9092 --engine http://gpu1:8000
    """
    load = partial(_engine_settings, "balance", given.config_file, _arguments(given))
    settings = load()
    if settings.bus == "memory":
        raise SetupError("name the bus: kairos balance --bus kafka://HOST:PORT")
    if settings.is_over_pools:
        known = ", ".join(settings.pools)[:1000]
        raise SetupError(f"name the pool to decide for: kairos balance --pool NAME, of {known}")
    run(_balance(settings, load if has_files(given.config_file, settings) else None))


async def _balance(settings: Settings, load: Load | None) -> None:
    from kairos.service import balancing

    stop = stop_signal()
    async with balancing(settings) as service:
        collect_less_often()
        switch_threads_often()
        allow_many_connections()
        typer.echo(f"kairos: pool {settings.pool} on {settings.bus}; figures on {service.url}")
        await _until_stopped(stop, service.reload, load, "running calls may finish")


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
    """Follow workflows over Kafka, learn from ended ones, and publish profiles to balancers.

    Of several processes one is active at a time; if it dies, another rebuilds the open workflows
    from the events. It shows workflows and agents over HTTP, so that `kairos explain` works;
    /metrics and /health too. On SIGHUP API keys and certificates are read again.

    Example: kairos orchestrate --bus kafka://broker:9092
    """
    arguments = {"bus": bus, "pool": pool, "host": host, "port": port}
    load = partial(load_settings, config_file, os.environ, arguments)
    settings = load()
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    run(_orchestrate(settings, load if has_files(config_file, settings) else None))


async def _orchestrate(settings: Settings, load: Load | None) -> None:
    from kairos.cluster import following_workflows

    stop = stop_signal()
    async with following_workflows(settings) as service:
        collect_less_often()
        typer.echo(f"kairos: workflows and agents of {settings.bus} on {service.url}/v1")
        await _until_stopped(stop, service.reload, load, "what was learnt is published")
