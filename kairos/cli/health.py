"""`kairos health`: a probe."""

from typing import Annotated

import typer

from kairos.cli.options import GATEWAY, OwnCertificate, OwnKey, ServiceCa, own_files


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
