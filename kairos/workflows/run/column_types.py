"""Of what type a column of JSON values is, where all that is known are the values.

A type is what pyarrow calls it: `null`, `bool_`, `int64`, `float64`, `string`; or `[type]` for a
list, and `{name: type}` for an object. Numbers have a common type unless a fraction and an integer
that loses digits as one (`long_int64`) are among them, an object has all fields that one of them
has, and null is of any type. Nothing else has one.
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
    """The type of what has this type and of all the values.

    Raises:
        NoCommonType: there is none.
    """
    for value in values:
        if type(value) is str and known == TEXT:
            continue
        known = _merged(known, _type_of(value))
    return known


def to_arrow(pa: Any, found: ColumnType) -> Any:
    """The same as pyarrow has it. A column of nothing but null is of texts."""
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
