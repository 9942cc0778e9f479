"""`kairos plan-autoscale`: how many engines a running Kairos should have, and why."""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.options import ADMIN, OwnCertificate, OwnKey, ServiceCa, own_files
from kairos.settings import default_api_key


def plan_autoscale(
    file: Annotated[
        Path | None,
        typer.Option(
            help="TOML: bounds, and how engines are started. docs/how-to/autoscale.md has one."
        ),
    ] = None,
    url: Annotated[str, typer.Option(help="The operators' port of a running Kairos.")] = ADMIN,
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
    """Say how many engines a pool should have for its future work; with --drive, keep it so.

    It accounts for the work that open workflows still need, and for workflows that will begin until
    an engine that is started now would serve. Ctrl-C leaves the pool as it is.

    Examples:

    kairos plan-autoscale

    kairos plan-autoscale --file scaling.toml --drive
    """
    from kairos.capacity import open_scaler

    scaler = open_scaler(
        url,
        default_api_key(api_key_env, os.environ),
        own_files(tls_ca, tls_certificate, tls_key),
        file,
        drive=drive,
        say=lambda text: typer.echo(f"{time.strftime('%H:%M:%S')} {text}"),
    )
    if once:
        scaler.check_pool()
    try:
        with _hearing_ctrl_c() as heard:
            scaler.step(time.monotonic())
            while not once and not heard(scaler.every_s):
                scaler.step(time.monotonic())
    except KeyboardInterrupt:
        once = False
    if not once:
        typer.echo("interrupted; the pool stays as it is")


@contextmanager
def _hearing_ctrl_c() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits up to a time for Ctrl-C, and returns whether it came.

    The first Ctrl-C interrupts no step: a started engine would be forgotten. The second does. The C
    handler notes it; a KeyboardInterrupt would be lost where Python ignores exceptions, such as
    when objects are destroyed.
    """
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        fd_before = signal.set_wakeup_fd(writing.fileno())
        before = signal.signal(
            signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.default_int_handler)
        )
        try:
            yield lambda wait_s: bool(select.select([reading], [], [], wait_s)[0])
        finally:
            signal.set_wakeup_fd(fd_before)
            signal.signal(signal.SIGINT, before)
