"""A file of API keys alone, for `keys_path`: TOML with `[[key]]` tables."""

import json
import stat
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import InvalidFile
from kairos.settings.tenants import KeySettings, check_keys, with_zone

_HEAD = "# `kairos keys` writes this file again with each change: comments in it are lost.\n"


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: tuple[KeySettings, ...] = ()


def read_keys(path: Path) -> tuple[KeySettings, ...]:
    """Return the keys of a file, after checking them.

    Raises InvalidFile: It does not exist, others can write it, or a key in it is invalid.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise InvalidFile(path, "this is not a regular file")
        if mode & 0o022:
            raise InvalidFile(path, f"others can write it, and add keys: 'chmod 600 {path}'")
        given = tomllib.loads(path.read_text("utf-8"))
        given["key"] = with_instants(given.get("key", ()))
        keys = msgspec.convert(given, KeyFile).key
    except FileNotFoundError:
        made = f"'kairos keys create --tenant NAME {path}' makes one"
        raise InvalidFile(path, f"there is no such file of keys; {made}") from None
    except OSError as error:
        raise InvalidFile(path, f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InvalidFile(path, "not TOML: nested too deeply") from None
    except msgspec.ValidationError as error:  # which is a ValueError, too
        raise InvalidFile(path, f"{error}; it may have [[key]] tables alone") from None
    except ValueError as error:  # of TOML, of UTF-8
        raise InvalidFile(path, f"not TOML: {error}") from None
    check_keys(keys, str(path))
    return keys


def with_instants(tables: Any) -> Any:
    """Return `[[key]]` tables with instants in place of dates: a day begins at 00:00 UTC.

    A value that is not a list of tables is returned unchanged, for the types to reject.
    """
    if not isinstance(tables, list):
        return tables
    return [
        {name: _instant(value) for name, value in table.items()}
        if isinstance(table, dict)
        else table
        for table in tables
    ]


def _instant(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return with_zone(value) if isinstance(value, datetime) else value


def key_to_toml(keys: Iterable[KeySettings]) -> str:
    """Return the content of a file with these keys; default values are left out."""
    return _HEAD + "".join(f"\n[[key]]\n{''.join(_lines(key))}" for key in keys)


def _lines(key: KeySettings) -> Iterable[str]:
    for field in msgspec.structs.fields(key):
        value = getattr(key, field.name)
        if value is not None and value != field.default:
            yield f"{field.name} = {_value(value)}\n"


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():  # TOML escapes as JSON does, and DEL, too; it has no surrogates
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case datetime():
            return format_instant(value)
        case Mapping():
            return f"{{{', '.join(f'{_value(k)} = {_value(v)}' for k, v in value.items())}}}"
        case _:
            return f"[{', '.join(_value(each) for each in value)}]"


def format_instant(instant: datetime) -> str:
    """Return an instant in UTC, in TOML's format."""
    return with_zone(instant).astimezone(UTC).isoformat().replace("+00:00", "Z")
