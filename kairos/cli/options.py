"""Options that several commands share."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from kairos.core import PLACEMENT_NAMES, POLICY_NAMES
from kairos.settings import Settings, TlsFiles

Options = TypeVar("Options")

SERVE = Settings()  # the defaults
GATEWAY = f"http://{SERVE.host}:{SERVE.port}"
ADMIN = f"http://{SERVE.admin_host}:{SERVE.admin_port}"
_POLICIES = ", ".join(sorted(POLICY_NAMES))
POLICY_HELP = rf"Order of the queue \[{SERVE.policy}: least work left first]: {_POLICIES}."
BUS_HELP = (
    rf"Where Kairos's processes and agents meet \[{SERVE.bus}: in this process]: "
    r"kafka://HOST:PORT\[,HOST:PORT]. Credentials stand in the file, under \[kafka]."
)
POOL_HELP = rf"On a bus: the engines for which decisions are made in one place \[{SERVE.pool}]."
PLACEMENT_HELP = f"Choice of the instance: {', '.join(sorted(PLACEMENT_NAMES))}."

LogDirectory = Annotated[
    Path, typer.Option(envvar="KAIROS_LOG_DIR", help="The directory of a serve --log.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same, for a program.")]
RecordAsJson = Annotated[
    bool, typer.Option("--json", help="Print the metrics record, and nothing else.")
]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="The environment variable that holds your API key.")
]

TlsCertificate = Annotated[
    Path | None,
    typer.Option(help="Speak TLS on both ports: a certificate, with its chain behind it, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option(help="The certificate's private key, in PEM, without a passphrase.")
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(help="Require client certificates signed by a CA in this file (both ports)."),
]

# Of commands that connect to a Kairos.
ServiceCa = Annotated[
    Path | None,
    typer.Option(
        envvar="KAIROS_SERVICE_CA",
        help="CA file (PEM) that must have signed the service's certificate "
        r"\[the system's CAs].",
    ),
]
OwnCertificate = Annotated[
    Path | None,
    typer.Option(
        envvar="KAIROS_CLIENT_CERTIFICATE",
        help="Client certificate (PEM), for services that require one.",
    ),
]
OwnKey = Annotated[
    Path | None,
    typer.Option(envvar="KAIROS_CLIENT_KEY", help="Private key (PEM) of the client certificate."),
]


# Of the load of `kairos replay` and `kairos simulate`.
_WORKFLOWS = typer.Option(
    help="A workflow file (traces/README.md), or an Azure trace, with a workflow of one call for "
    "each row; plain or gzip."
)
Workflows = Annotated[Path, _WORKFLOWS]
WorkflowsIfAny = Annotated[Path | None, _WORKFLOWS]
Rate = Annotated[
    float | None, typer.Option(help=r"Workflows per second, in the long run \[1; the file's own].")
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        help="azure-conv or azure-code (as bursty as these traces), poisson, gamma:CV, or the "
        r"file of an Azure trace \[the file's own if it is a trace or from kairos export; "
        "else azure-conv]."
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workflows to submit; when they run out they repeat "
        r"\[all of the file].",
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Shorten prompts in proportion, in applications with a call (prompt plus completion) "
        "of more than this many tokens.",
    ),
]


def with_options(command: Callable[[Options], None]) -> Callable[..., None]:
    """Return a command whose options are the fields of the struct that `command` takes."""
    hints = get_type_hints(command)
    (kind,) = (hint for name, hint in hints.items() if name != "return")

    @wraps(command)
    def run(**given: Any) -> None:
        command(kind(**given))

    run.__annotations__ = get_type_hints(kind, include_extras=True)
    vars(run)["__signature__"] = signature(kind)
    return run


def fill_options(kind: type[Options], given: object, **others: object) -> Options:
    """Return options of another kind: fields of that name that were given, and `others`."""
    names = [name for name in signature(kind).parameters if name not in others]
    shared = {name: getattr(given, name, None) for name in names}
    return kind(**{name: each for name, each in shared.items() if each is not None}, **others)


def own_files(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles:
    return TlsFiles(*(None if each is None else str(each) for each in (certificate, key, ca)))


def outline(figures: object, indent: str = "") -> str:
    if not isinstance(figures, dict):
        return f" {figures}"
    lines = [f"{indent}{name}:{outline(value, indent + '  ')}" for name, value in figures.items()]
    return ("\n" if indent else "") + "\n".join(lines)
