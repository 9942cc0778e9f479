"""`kairos keys`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kairos.core import SetupError
from kairos.settings import Role

app = typer.Typer(help="API keys in a file of their own, which the setting keys_path names.")

_File = Annotated[Path, typer.Argument(help="The file of keys.")]
_Name = Annotated[str, typer.Argument(help="Name in `kairos keys list`.")]


@app.command("create")
def keys_create(
    file: _File,
    tenant: Annotated[str, typer.Option(help="The key's tenant.")],
    app: Annotated[
        str | None, typer.Option(help="If it is for one app only, which one that is.")
    ] = None,
    role: Annotated[
        Role,
        typer.Option(
            help="Rights. caller: make calls. viewer: see the operators' routes. admin: both, "
            "and add and remove engines."
        ),
    ] = "caller",
    name: Annotated[
        str | None,
        typer.Option(help="A short name for it; without one, it is called by its digest."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="Expiry: a duration (90d), a date (2027-01-31, from 00:00 UTC on) or an instant. "
            "Without it, never."
        ),
    ] = None,
) -> None:
    """Make a key, and print it: this once, for its digest alone is kept.

    Example: kairos keys create --tenant team-a --name ci --expires 90d keys.toml
    """
    from kairos.cli import key_files as keys
    from kairos.host import WallClock
    from kairos.settings import format_instant

    now_us = WallClock().now()
    made = keys.create(
        file,
        tenant,
        _print_key,
        now_us=now_us,
        app=app,
        role=role,
        name=name,
        expires=expires,
    )
    until = "" if made.expires is None else f", until {format_instant(made.expires)}"
    _explain(f"'{made.label}' of tenant '{tenant}' is in {file}{until}")
    _explain("keep what was printed: it is stored nowhere")
    _say_how_to_put_in_force()


@app.command("list")
def keys_list(file: _File) -> None:
    """List keys: what they are called and stand for, and when they expire. Times are in UTC."""
    from kairos.cli import key_files as keys
    from kairos.host import WallClock
    from kairos.settings import read_keys

    typer.echo(keys.table(read_keys(file), WallClock().now()))


@app.command("revoke")
def keys_revoke(name: _Name, file: _File) -> None:
    """Take a key out of the file. It is refused once that is in force."""
    from kairos.cli import key_files as keys

    gone = keys.revoke(file, name)
    _explain(f"'{name}' of tenant '{gone.tenant}' is no longer in {file}")
    _say_how_to_put_in_force()


@app.command("rotate")
def keys_rotate(
    name: _Name,
    file: _File,
    grace: Annotated[
        str,
        typer.Option(help="How long the old key remains valid, at most; 0s: not at all."),
    ] = "24h",
    expires: Annotated[
        str | None,
        typer.Option(
            help="When the new key expires, as of `kairos keys create`. Without it, it lives as "
            "long as the old one was to."
        ),
    ] = None,
) -> None:
    """Make a key in the place of another, for the same tenant and app, and print it.

    The new key has the old one's name. The old one is called by its digest, and expires.
    """
    from kairos.cli import key_files as keys
    from kairos.host import WallClock
    from kairos.settings import format_instant

    now_us = WallClock().now()
    new, old = keys.rotate(file, name, _print_key, now_us=now_us, grace=grace, expires=expires)
    assert old.expires is not None
    until = "" if new.expires is None else f", until {format_instant(new.expires)}"
    _explain(f"'{new.label}' of tenant '{new.tenant}' is another key now{until}")
    _explain(f"the old one is called '{old.label}', and expires {format_instant(old.expires)}")
    _explain("keep what was printed: it is stored nowhere")
    _say_how_to_put_in_force()


def _print_key(key: str) -> None:
    """Print a key.

    Raises:
        SetupError: It cannot be printed.
    """
    problem = "standard output is closed" if sys.stdout is None else None
    try:
        typer.echo(key)
    except OSError as error:
        problem = error.strerror
    if problem is not None:
        raise SetupError(f"the key cannot be printed ({problem}), so nothing was changed")


def _say_how_to_put_in_force() -> None:
    _explain("to put it in force, send SIGHUP to each process that reads the file")


def _explain(text: str) -> None:
    typer.echo(f"kairos: {text}", err=True)
