"""`kairos keys`: creates, lists, revokes and rotates API keys in a file (`settings/key_file.py`).

A key itself is shown once, when it is created; only its digest is stored. Each change takes a lock
and replaces the file atomically, so concurrent commands lose nothing, and an interrupted one
changes nothing.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from io import BufferedWriter
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from kairos.core import SECOND, SetupError
from kairos.host import WallClock, atomic_write
from kairos.settings import (
    KeySettings,
    Role,
    check_keys,
    format_instant,
    key_to_toml,
    read_keys,
    with_zone,
)

app = typer.Typer(help="API keys in a file of their own, which the setting keys_path names.")

_File = Annotated[Path, typer.Argument(help="The file of keys.")]
_Name = Annotated[str, typer.Argument(help="Name in `kairos keys list`.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANDOM_BYTES = 32

_Show = Callable[[str], None]


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
    now_us = WallClock().now()
    made = create_key(
        file, tenant, _print_key, now_us=now_us, app=app, role=role, name=name, expires=expires
    )
    until = "" if made.expires is None else f", until {format_instant(made.expires)}"
    _explain(f"'{made.label}' of tenant '{tenant}' is in {file}{until}")
    _explain("keep what was printed: it is stored nowhere")
    _say_how_to_put_in_force()


@app.command("list")
def keys_list(file: _File) -> None:
    """List keys: what they are called and stand for, and when they expire. Times are in UTC."""

    typer.echo(key_table(read_keys(file), WallClock().now()))


@app.command("revoke")
def keys_revoke(name: _Name, file: _File) -> None:
    """Take a key out of the file. It is refused once that is in force."""
    gone = revoke_key(file, name)
    _explain(f"'{name}' of tenant '{gone.tenant}' is no longer in {file}")
    _say_how_to_put_in_force()


@app.command("rotate")
def keys_rotate(
    name: _Name,
    file: _File,
    grace: Annotated[
        str, typer.Option(help="How long the old key remains valid, at most; 0s: not at all.")
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
    now_us = WallClock().now()
    new, old = rotate_key(file, name, _print_key, now_us=now_us, grace=grace, expires=expires)
    assert old.expires is not None
    until = "" if new.expires is None else f", until {format_instant(new.expires)}"
    _explain(f"'{new.label}' of tenant '{new.tenant}' is another key now{until}")
    _explain(f"the old one is called '{old.label}', and expires {format_instant(old.expires)}")
    _explain("keep what was printed: it is stored nowhere")
    _say_how_to_put_in_force()


def _print_key(key: str) -> None:
    """Print a key. Raises SetupError: It cannot be printed."""
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


class Rotated(NamedTuple):
    """The key that counts from now on, and the one before it, until its grace ends."""

    new: KeySettings
    old: KeySettings


def create_key(
    path: Path,
    tenant: str,
    show: _Show,
    *,
    now_us: int,
    app: str | None = None,
    role: Role = "caller",
    name: str | None = None,
    expires: str | None = None,
) -> KeySettings:
    """Add a random key to a file, which is created if missing. If `show` raises, nothing changes.

    `now_us` is since the Unix epoch; `expires` a duration (`90d`), a date or an instant. Raises
    SetupError: The file or an argument is invalid; nothing was changed.
    """
    now = _instant_of(now_us)
    until = None if expires is None else _until(expires, now)
    secret, key = _random_key()
    key = msgspec.structs.replace(
        key, tenant=tenant, app=app, role=role, name=name, expires=until, created=now
    )
    with _locked(path, may_be_new=True) as file:
        before = read_keys(file) if file.exists() else ()
        if key.label in (each.label for each in before):
            raise SetupError(f"{path}: a key is called '{key.label}' already; choose another name")
        _write(file, (*before, key), lambda: show(secret))
    return key


def revoke_key(path: Path, called: str) -> KeySettings:
    """Take a key out of a file; gives the key that it was.

    Raises SetupError: the file is wrong, or no key is called so; nothing was changed.
    """
    with _locked(path) as file:
        keys = read_keys(file)
        found = _found(keys, called, path)
        _write(file, [key for key in keys if key is not found])
    return found


def rotate_key(
    path: Path,
    called: str,
    show: _Show,
    *,
    now_us: int,
    grace: str = "24h",
    expires: str | None = None,
) -> Rotated:
    """Replace a key by a new one with the same properties; the old one loses its name and expires.

    It does so at the end of `grace` (as `expires` of `create_key`), or when it would have anyway.
    Without `expires` the new key has the old one's lifetime. Raises SetupError: The file or an
    argument is invalid; nothing was changed.
    """
    now = _instant_of(now_us)
    grace_ends = _until(grace, now, at_once=True)
    until = None if expires is None else _until(expires, now)
    secret, key = _random_key()
    with _locked(path) as file:
        keys = read_keys(file)
        found = _found(keys, called, path)
        if until is None and found.expires is not None:
            until = _same_life(found, now)
        ends = grace_ends if found.expires is None else min(grace_ends, found.expires)
        new = msgspec.structs.replace(found, sha256=key.sha256, created=now, expires=until)
        old = msgspec.structs.replace(found, name=None, expires=ends)
        after = [each for key in keys for each in ((new, old) if key is found else (key,))]
        _write(file, after, lambda: show(secret))
    return Rotated(new, old)


def key_table(keys: Sequence[KeySettings], now_us: int) -> str:
    """Keys for people, one a line, with the first digits of their digests."""
    heads = ("name", "tenant", "app", "role", "created", "expires", "state", "sha256")
    rows = [heads, *(_row(key, now_us) for key in keys)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(key: KeySettings, now_us: int) -> tuple[str, ...]:
    return (
        key.label,
        key.tenant,
        key.app or "any",
        key.role,
        "-" if key.created is None else format_instant(key.created),
        "never" if key.expires is None else format_instant(key.expires),
        "active" if key.expires_at is None or now_us < key.expires_at else "expired",
        key.sha256[:8],
    )


def _random_key() -> tuple[str, KeySettings]:
    """And what is kept of it, for no tenant as yet."""
    secret = f"kai-{secrets.token_urlsafe(_RANDOM_BYTES)}"
    return secret, KeySettings(sha256=hashlib.sha256(secret.encode()).hexdigest(), tenant="")


def _found(keys: Sequence[KeySettings], called: str, path: Path) -> KeySettings:
    found = [key for key in keys if key.label == called]
    if not found:
        raise SetupError(
            f"{path}: no key is called '{called}'; 'kairos keys list {path}' shows what they are "
            "called"
        )
    if len(found) > 1:
        raise SetupError(f"{path}: {len(found)} keys are called '{called}'; give each a name there")
    return found[0]


def _until(text: str, now: datetime, *, at_once: bool = False) -> datetime:
    """Return the instant at the end of a duration, or of a date or an instant, in UTC by default.

    Raises SetupError: The text has another form, or is in the past; now is allowed with `at_once`.
    """
    try:
        if duration := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
            instant = now + timedelta(seconds=int(duration[1]) * _SECONDS[duration[2]])
        else:
            instant = with_zone(datetime.fromisoformat(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise SetupError(
            f"'{text}' is not a time to expire at: write a duration (30m, 24h, 90d), a date "
            "(2027-01-31, from 00:00 UTC on), or an instant (2027-01-31T12:00Z)"
        ) from None
    if instant < now or (instant == now and not at_once):
        raise SetupError(f"'{text}' is not a time to expire at: it has passed")
    return instant


def _same_life(old: KeySettings, now: datetime) -> datetime:
    if old.created is None or old.expires is None or old.expires <= old.created:
        raise SetupError(
            f"'{old.label}' expires, and does not say when it was made: say with --expires how "
            "long the new key is to live"
        )
    return now + (old.expires - old.created)


def _instant_of(us: int) -> datetime:
    """Return the instant to the second, for people to read."""
    return datetime.fromtimestamp(us // SECOND, UTC)


@contextlib.contextmanager
def _locked(path: Path, *, may_be_new: bool = False) -> Iterator[Path]:
    """Yield the file itself, if `path` is a link, under an exclusive lock.

    The lock is on a file next to it, which stays: the file itself is replaced.
    """
    if not may_be_new:
        read_keys(path)  # if there is none, that is said before anything is written beside it
    try:
        file = path.resolve()
        lock = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a name that cannot be
        problem = (isinstance(error, OSError) and error.strerror) or error
        raise SetupError(f"cannot write next to {path}: {problem}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(lock)


def _write(file: Path, keys: Sequence[KeySettings], tell: Callable[[], None] | None = None) -> None:
    """Replace the file after `tell` has succeeded; if it fails, the file is not changed."""
    check_keys(tuple(keys))
    with atomic_write(file, mode=0o600) as written:
        _keep_permissions(file, written)
        written.write(key_to_toml(keys).encode())
        written.flush()  # a full disk is found before anything is told
        if tell is not None:
            tell()


def _keep_permissions(file: Path, written: BufferedWriter) -> None:
    """Keep the file's readers, also if root changes another user's file."""
    if not file.exists():
        return
    of, ours = file.stat(), os.fstat(written.fileno())
    try:
        if (of.st_uid, of.st_gid) != (ours.st_uid, ours.st_gid):
            os.fchown(written.fileno(), of.st_uid, of.st_gid)
        os.fchmod(written.fileno(), stat.S_IMODE(of.st_mode) & 0o644)
    except PermissionError:
        raise SetupError(
            f"{file} belongs to another user: change it as that user, or as root"
        ) from None
