"""Values of Arrow columns, as Python values or as texts.

Where pyarrow's own `to_pylist` fails, loses digits, or depends on whether pandas is installed
(nanoseconds, years beyond 9999, texts that are not UTF-8), values are converted one by one.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NS = 10**9
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)  # a timestamp without a time zone stays naive
_END_OF_SECONDS = re.compile(r"(?<=:\d\d:\d\d)")


class Unreadable(msgspec.Struct, frozen=True):
    """Stand-in for a value that cannot be read."""

    problem: str


def column_values(pa: Any, column: Any) -> Sequence[object]:
    """Return the values of an array, with `Unreadable` for each that cannot be read."""
    if _is_simple(pa.types, column.type):
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except (ValueError, OverflowError):
            pass  # perhaps only one of its values
    return [_readable(pa, scalar) for scalar in column]


def are_json(pa: Any, column: Any) -> bool:
    """Return whether an array has only JSON values: no NaN, and no infinity.

    True for timestamps and the like, too, which msgspec converts to text.
    """
    kind, types = column.type, pa.types
    if types.is_floating(kind):
        from pyarrow import compute

        return bool(compute.all(compute.is_finite(column), min_count=0).as_py())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return are_json(pa, column.flatten())
    if types.is_struct(kind):
        return all(are_json(pa, each) for each in column.flatten())
    has_storage = hasattr(kind, "storage_type")  # an extension
    is_other = types.is_nested(kind) or types.is_dictionary(kind) or types.is_interval(kind)
    return not (is_other or has_storage)


def _is_simple(types: Any, kind: Any) -> bool:
    """Return whether pyarrow converts values of a type without loss, or raises."""
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind):
        return bool(kind.unit != "ns")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_simple(types, kind.value_type)
    if types.is_struct(kind):
        names = [field.name for field in kind]
        are_simple = all(_is_simple(types, field.type) for field in kind)
        return are_simple and len({*names}) == len(names)
    has_storage = hasattr(kind, "storage_type")  # an extension
    return not (types.is_nested(kind) or types.is_dictionary(kind) or has_storage)


def _readable(pa: Any, scalar: Any) -> object:
    try:
        return _value(pa, scalar)
    except (ValueError, OverflowError) as error:
        return Unreadable(str(error))


def _value(pa: Any, scalar: Any) -> object:
    """Return the value of a scalar.

    Raises:
        ValueError, OverflowError: Python and JSON have no such value.
    """
    if not scalar.is_valid:
        return None
    kind, types, inner = scalar.type, pa.types, getattr(scalar, "value", None)
    if isinstance(inner, pa.Scalar):  # a dictionary, a union, runs, an extension
        storage = getattr(kind, "storage_type", None)
        is_plain = storage is not None and _is_simple(types, storage)
        return scalar.as_py() if is_plain else _value(pa, inner)
    if types.is_struct(kind):
        return {field.name: _value(pa, scalar[at]) for at, field in enumerate(kind)}
    if types.is_map(kind):
        pairs = scalar.values
        return [[_value(pa, each) for each in (pair[0], pair[1])] for pair in pairs]
    if types.is_nested(kind):
        return [_value(pa, each) for each in scalar.values]
    return _moment(pa, scalar) if types.is_temporal(kind) else scalar.as_py()


def _moment(pa: Any, scalar: Any) -> object:
    """Return a timestamp, date, time or duration in ISO 8601."""
    kind, types = scalar.type, pa.types
    if types.is_timestamp(kind):
        return _instant(scalar.value * (_NS // _PER_S[kind.unit]), _zone(pa, kind.tz))
    if types.is_duration(kind):
        return _duration(scalar.value * (_NS // _PER_S[kind.unit]))
    if types.is_time64(kind):
        ns = scalar.value * (_NS // _PER_S[kind.unit])
        return _instant(ns, None).partition("T")[2]
    if types.is_date32(kind):
        return _instant(scalar.value * _DAY_S * _NS, None).partition("T")[0]
    if types.is_date64(kind):
        return _instant(scalar.value * 10**6, None).partition("T")[0]
    return scalar.as_py()


def _zone(pa: Any, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        found: tzinfo = pa.lib.string_to_tzinfo(name)
    except (ValueError, OSError, KeyError):
        return UTC  # this machine does not know the zone
    return found


def _instant(ns: int, zone: tzinfo | None) -> str:
    """Return a timestamp without a fraction, with six digits of one, or with nine if needed.

    Years that Python cannot hold are in UTC.
    """
    seconds, fraction = divmod(ns, _NS)
    try:
        at = _EPOCH + timedelta(seconds=seconds)
        if zone is not None:
            at = at.replace(tzinfo=UTC).astimezone(zone)
        text: str = msgspec.to_builtins(at)
    except OverflowError:
        import numpy as np  # a tenth of a second, for years that hardly any table has

        text = f"{np.datetime_as_string(np.datetime64(seconds, 's'))}{'Z' if zone else ''}"
    return _END_OF_SECONDS.sub(_digits(fraction), text, count=1)


def _duration(ns: int) -> str:
    """Return a duration, such as P1DT2.5S."""
    seconds, fraction = divmod(abs(ns), _NS)
    days, seconds = divmod(seconds, _DAY_S)
    text = f"{seconds}{_digits(fraction).rstrip('0')}S" if seconds or fraction else ""
    sign = "-" if ns < 0 else ""
    if not days:
        return f"{sign}PT{text or '0S'}"
    return f"{sign}P{days}D{'T' if text else ''}{text}"


def _digits(fraction_ns: int) -> str:
    if not fraction_ns:
        return ""
    return f".{fraction_ns:09d}" if fraction_ns % 1000 else f".{fraction_ns // 1000:06d}"
