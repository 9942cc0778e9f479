"""Data files: read line by line, plain or gzip, or as TOML, and written atomically."""

import fcntl
import gzip
import os
import re
import stat
import tomllib
import typing
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedWriter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import uuid4

import msgspec

from kairos.core import InvalidFile, SetupError

MAX_LINE_BYTES = 1 << 20
MAX_LINES = 10_000_000  # blank ones too, of which a little gzip holds a lot
CHUNK_BYTES = 1 << 16
MAX_CHUNKS = 16  # of a file that people write: a megabyte

T = TypeVar("T", bound=msgspec.Struct)

# What gzip raises for data that breaks off, or is damaged, beside the errors of the file itself;
# ValueError is for a name that no file can have.
UNREADABLE = (OSError, EOFError, zlib.error, ValueError)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers from 1, and the lines of a file, without blank lines.

    Raises InvalidFile: The file cannot be read to its end, a line is longer than `MAX_LINE_BYTES`,
    or there are more than `MAX_LINES`.
    """
    number = 0
    try:
        with open_content(path) as (file, _):
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number > MAX_LINES:
                    raise InvalidFile(path, f"more than {MAX_LINES} lines; split the file")
                if len(line) > MAX_LINE_BYTES:
                    raise InvalidFile(path, f"longer than {MAX_LINE_BYTES} bytes", line=number)
                if not line.isspace():
                    yield number, line
    except UNREADABLE as error:
        where = number + 1 if number else None
        raise InvalidFile(path, f"cannot be read: {error}", line=where) from error


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks, so that a caller can stop where it is too long.

    Raises InvalidFile: The file cannot be read to its end.
    """
    try:
        with open_content(path) as (file, _):
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except UNREADABLE as error:
        raise InvalidFile(path, f"cannot be read: {error}") from error


@contextmanager
def open_content(path: Path) -> Iterator[tuple[BufferedIOBase, Callable[[], int]]]:
    """Yield the file's content, decompressed if it starts with gzip's magic bytes.

    Also yield a function that returns how many of the file's own bytes were read. Raises OSError:
    It is not a regular file, or cannot be opened.
    """
    # Files are read more than once, which a pipe cannot be; and one that nobody writes to blocks.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file, which can be read again")
    with path.open("rb") as file:
        packed = file.peek(2).startswith(b"\x1f\x8b")
        yield (gzip.GzipFile(fileobj=file) if packed else file), file.tell


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666) -> Iterator[BufferedWriter]:
    """Yield a file that replaces `path` when the block ends; if the block raises, nothing changes.

    Its permissions are `mode`, less the process's umask. Raises SetupError: The file cannot be
    written there.
    """
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yield whether this process has the lock of a file during the block; only one process has it.

    The file has the process's id. The lock ends with the process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        is_ours = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield is_ours
    finally:
        os.close(descriptor)


def read_toml(path: Path, kind: type[T]) -> T:
    """Return the content of a TOML file as a struct that forbids unknown fields.

    Raises InvalidFile: The content is invalid; for an unknown key the message lists the known ones.
    """
    chunks = [*islice(read_chunks(path), MAX_CHUNKS + 1)]
    if len(chunks) > MAX_CHUNKS:
        raise InvalidFile(path, "more than a megabyte: this is not what it should be")
    try:
        return msgspec.convert(tomllib.loads(b"".join(chunks).decode()), kind)
    except msgspec.ValidationError as error:  # which is a ValueError too
        raise InvalidFile(path, f"{error}{_known(kind, str(error))}") from error
    except RecursionError as error:
        raise InvalidFile(path, "not TOML: nested too deeply") from error
    except ValueError as error:  # of TOML, of UTF-8, of a number of thousands of digits
        raise InvalidFile(path, f"not TOML: {error}") from error


def _known(kind: type[msgspec.Struct], problem: str) -> str:
    """Return the fields that are known where an unknown one was found."""
    if not problem.startswith("Object contains unknown field"):
        return ""
    at: Any = kind
    for step in re.findall(r"\.(\w+)|(\[)", problem.partition(" - at `$")[2]):
        at = _inside(at, step[0])
        if at is None:  # it was the field's name that looked like a path
            return ""
    return f"; known are: {', '.join(field.name for field in msgspec.structs.fields(at))}"


def _inside(kind: Any, field: str) -> Any:
    """Return the type of a struct's field or, without a field, of a tuple's or dict's elements."""
    if field:
        kind = {each.name: each.type for each in msgspec.structs.fields(kind)}.get(field)
    else:
        kind = next(each for each in reversed(typing.get_args(kind)) if each is not Ellipsis)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
