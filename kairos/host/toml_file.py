"""TOML files that people write: parsed strictly, so that no key is ignored."""

import re
import tomllib
import typing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from kairos.core import InvalidFile
from kairos.host.files import read_chunks

MAX_CHUNKS = 16  # a megabyte
T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path, kind: type[T]) -> T:
    """Return a file's content as a struct that forbids unknown fields.

    Raises:
        InvalidFile: The content is invalid; for an unknown key the message lists the known ones.
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
