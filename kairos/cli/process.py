"""`kairos process`: what operators of flows that retrieve ask for, as a service of its own."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kairos.cli.flow_options import CollectionsPlace, Embedders, Rerankers, retrieval
from kairos.cli.options import SERVE, TlsCertificate, TlsClientCa, TlsKey
from kairos.cli.running import has_files, ignore_hangups, on_hangup, run, stop_signal
from kairos.core import SetupError
from kairos.host import allow_many_connections, collect_less_often
from kairos.settings import RetrievalSettings, Settings, load_settings

_PORT = 8004


def process(
    embedder: Embedders = None,
    reranker: Rerankers = None,
    collections: CollectionsPlace = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Another `kairos process`, from which values that stay there may be fetched, by "
            r"the address that flows have of it: http://HOST:PORT\[,api_key_env=VARIABLE]; repeat."
        ),
    ] = None,
    hold_mb: Annotated[
        int | None,
        typer.Option(help=r"MiB of values that stay here \[1024]; a run may have a quarter."),
    ] = None,
    host: Annotated[str | None, typer.Option(help=f"Address to listen on [{SERVE.host}].")] = None,
    port: Annotated[
        int | None, typer.Option(help=rf"Port to listen on \[{_PORT}]; 0: any.")
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help=r"TOML file with any of these, \[retrieval] and API keys."),
    ] = None,
) -> None:
    """Embed, rank, ingest and search for flows that run elsewhere: one process on each host.

    `kairos run --processor` names them, and so do settings of `kairos serve`. A vector that only
    other operators of retrieval need stays with the processor that made it, and is fetched from
    there where it is needed, bypassing the process that runs the flow. Beyond loopback it requires
    an API key. On SIGHUP keys and certificates are read again.

    Example: kairos process --embedder http://gpu1:8101 --peer http://host2:8004
    """
    arguments = {
        "host": host,
        "port": port,
        "tls_certificate": _path(tls_certificate),
        "tls_key": _path(tls_key),
        "tls_client_ca": _path(tls_client_ca),
    }
    told = retrieval(embedder, reranker, collections, peer)

    def load() -> Settings:
        from kairos.cluster import check_guarded

        settings = load_settings(config_file, os.environ, arguments, {"port": _PORT})
        check_guarded(settings)
        changed = _with(settings.retrieval, told, hold_mb)
        return msgspec.structs.replace(settings, retrieval=changed)

    settings = load()
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    run(_process(settings, load if has_files(config_file, settings) else None))


async def _process(settings: Settings, load: Callable[[], Settings] | None) -> None:
    from kairos.cluster import processing_host

    stop = stop_signal()
    ignore_hangups()
    async with processing_host(settings) as host:
        collect_less_often()
        allow_many_connections()
        typer.echo(f"kairos: processing on {host.url}")
        host.reload.load = load
        on_hangup(host.reload.on_hangup)
        await stop.wait()
        typer.echo("kairos: stopping; what runs may finish, and what stays here is dropped")


def _with(
    given: RetrievalSettings | None, told: RetrievalSettings | None, hold_mb: int | None
) -> RetrievalSettings:
    """Return the file's settings, overridden by the command line.

    Raises:
        SetupError: A value is out of range.
    """
    settings, default = given or RetrievalSettings(), RetrievalSettings()
    changes = {} if told is None else msgspec.structs.asdict(told)
    named = {name: each for name, each in changes.items() if each != getattr(default, name)}
    if hold_mb is not None:
        named["hold_mb"] = hold_mb
    try:
        return RetrievalSettings(**(msgspec.structs.asdict(settings) | named))
    except ValueError as error:
        raise SetupError(str(error)) from None


def _path(told: Path | None) -> str | None:
    return None if told is None else str(told)
