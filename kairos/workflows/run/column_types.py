"""Find the type of a column from its JSON values.

A type has pyarrow's name: `null`, `bool_`, `int64`, `float64`, `string`; or is `[type]` for a list,
and `{name: type}` for an object. Numbers have a common type, except a fraction and an integer that
a float cannot hold exactly (`long_int64`). Objects have the fields of all of them. Null fits any
type. No other different types have a common one.
"""

from collections.abc import Iterable
from typing import Any

ColumnType = str | list[Any] | dict[str, Any]
NULL: ColumnType = "null"
TEXT: ColumnType = "string"
_LONG: ColumnType = "long_int64"
_INT64, _EXACT = 1 << 63, 1 << 53
_SCALARS: dict[type, ColumnType] = {
    type(None): NULL,
    bool: "bool_",
    int: "int64",
    float: "float64",
    str: TEXT,
}


class NoCommonType(Exception):
    """Values of a column are of different types, or of one that Parquet cannot hold."""


def common_type(known: ColumnType, values: Iterable[Any]) -> ColumnType:
    """Return the common type of a known type and some values.

    Raises:
        NoCommonType: their types differ.
    """
    for value in values:
        if type(value) is str and known == TEXT:
            continue
        known = _merged(known, _type_of(value))
    return known


def to_arrow(pa: Any, found: ColumnType) -> Any:
    """Return the type as pyarrow's. A column of nulls only becomes text."""
    return _arrow(pa, TEXT if found == NULL else found)


def _arrow(pa: Any, found: ColumnType) -> Any:
    match found:
        case str():
            return pa.int64() if found == _LONG else getattr(pa, found)()
        case [inner]:
            return pa.list_(_arrow(pa, inner))
        case dict():
            return pa.struct([(name, _arrow(pa, each)) for name, each in found.items()])
    raise AssertionError(found)


def _type_of(value: Any) -> ColumnType:
    match value:
        case list():
            return [common_type(NULL, value)]
        case dict() if value:
            return {name: _type_of(each) for name, each in value.items()}
        case int() if not -_INT64 <= value < _INT64:
            raise NoCommonType
        case int() if not -_EXACT <= value <= _EXACT:
            return _LONG
    if type(value) not in _SCALARS:
        raise NoCommonType  # an object without a field, too
    return _SCALARS[type(value)]


def _merged(one: ColumnType, other: ColumnType) -> ColumnType:
    match one, other:
        case _ if one == other or other == NULL:
            return one
        case "null", _:
            return other
        case ("int64", "float64") | ("float64", "int64"):
            return "float64"
        case ("int64", "long_int64") | ("long_int64", "int64"):
            return _LONG
        case [first], [second]:
            return [_merged(first, second)]
        case dict(), dict():
            names = dict.fromkeys((*one, *other))
            return {name: _merged(one.get(name, NULL), other.get(name, NULL)) for name in names}
    raise NoCommonType
