"""`kairos plan-autoscale`: how many engines a running Kairos should have, and why."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kairos import config
from kairos.cli.options import SERVE, OwnCertificate, OwnKey, ServiceCa, own_files


def plan_autoscale(
    file: Annotated[
        Path | None,
        typer.Option(
            help="TOML: bounds, and how engines are started. docs/how-to/autoscale.md has one."
        ),
    ] = None,
    url: Annotated[str, typer.Option(help="The operators' port of a running Kairos.")] = (
        f"http://{SERVE.admin_host}:{SERVE.admin_port}"
    ),
    drive: Annotated[
        bool,
        typer.Option("--drive/--dry-run", help="Start and drain engines, or only say what to do."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="The environment variable that holds your key; --drive wants an admin's."
        ),
    ] = None,
    tls_ca: ServiceCa = None,
    tls_certificate: OwnCertificate = None,
    tls_key: OwnKey = None,
) -> None:
    """Say how many engines a pool should have, from the work that is to come; keep it so.

    It reckons with what open workflows still need and with those that will begin until an engine
    that is started now serves. Ctrl-C leaves the pool as it is.

    Examples:

    kairos plan-autoscale

    kairos plan-autoscale --file scaling.toml --drive
    """
    from kairos.errors import SetupError
    from kairos.tools.autoscale import PoolScaler
    from kairos.tools.operated_pool import OperatedPool
    from kairos.tools.scaling_file import ScalingFile, engines_of, scaling_file

    found = ScalingFile() if file is None else scaling_file(file)
    engines = engines_of(found) if drive else None
    if drive and engines is None:
        raise SetupError("--drive: the file must say how engines start: [commands] or [kubernetes]")
    key = config.api_key(api_key_env, os.environ)
    pool = OperatedPool(url, key, own_files(tls_ca, tls_certificate, tls_key))
    if once:
        pool.work()  # which raises what `step` would only say
    scaler = PoolScaler(pool, found, engines, lambda text: typer.echo(f"{_stamp()} {text}"))
    try:
        while True:
            scaler.step(time.monotonic())
            if once:
                return
            time.sleep(found.every_s)
    except KeyboardInterrupt:
        typer.echo("interrupted; the pool stays as it is")


def _stamp() -> str:
    return time.strftime("%H:%M:%S")
