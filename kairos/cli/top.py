"""`kairos health` and `kairos top`: how a running Kairos is."""

import os
from typing import Annotated

import typer

from kairos.cli.options import ADMIN, GATEWAY, OwnCertificate, OwnKey, ServiceCa, own_files
from kairos.settings import default_api_key


def health(
    url: Annotated[
        str,
        typer.Argument(help="A running Kairos; with a path, that is asked in place of /health."),
    ] = GATEWAY,
    tls_ca: ServiceCa = None,
    tls_certificate: OwnCertificate = None,
    tls_key: OwnKey = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds.")] = 5.0,
) -> None:
    """Ask a running Kairos whether it is well; the exit status says so, to probes.

    Example: kairos health https://127.0.0.1:8001/admin/status --tls-ca ca.pem
    """
    from kairos.host import JsonServer

    files = own_files(tls_ca, tls_certificate, tls_key)
    typer.echo(JsonServer(url, files, timeout).check_health())


def top(
    url: Annotated[str, typer.Argument(help="The operators' port of a running Kairos.")] = ADMIN,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="The environment variable that holds your key: a viewer's or admin's."),
    ] = None,
    tls_ca: ServiceCa = None,
    tls_certificate: OwnCertificate = None,
    tls_key: OwnKey = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = (
        1.0
    ),
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
) -> None:
    """Show the present state: instances, and the queue in order.

    The same as the page at /ui of the operators' port. Without a terminal it shows the state once.

    Example: kairos top https://kairos.internal:8001 --api-key-env KAIROS_KEY
    """
    from kairos.cli.top_view import watch

    key = default_api_key(api_key_env, os.environ)
    watch(url, key, own_files(tls_ca, tls_certificate, tls_key), interval, once=once)
