"""Tables in Parquet, Arrow files and streams, and objects with Arrow's C stream.

Values are read as Python values or as texts. Where pyarrow's own `to_pylist` fails, loses digits,
or depends on whether pandas is installed (nanoseconds, years beyond 9999, texts that are not
UTF-8), values are converted one by one.

The type of a written column (`ColumnType`) is found from its JSON values. A type has pyarrow's
name: `null`, `bool_`, `int64`, `float64`, `string`; or is `[type]` for a list, and `{name: type}`
for an object. Numbers have a common type, except a fraction and an integer that a float cannot hold
exactly (`long_int64`). Objects have the fields of all of them. Null fits any type. No other
different types have a common one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.workflows.compile.values import NotJson, plain
from kairos.workflows.run.rows import ROW_BYTES, InputRow, too_large

Format = Literal["parquet", "arrow", "arrows"]  # arrow: a file; arrows: a stream

_BATCH_BYTES, _BATCH_ROWS = 4 << 20, 1024
_encode = msgspec.json.Encoder().encode

_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NS = 10**9
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)  # a timestamp without a time zone stays naive
_END_OF_SECONDS = re.compile(r"(?<=:\d\d:\d\d)")


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


def import_arrow() -> Any:
    """Return the module pyarrow. Raises SetupError: it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise SetupError(
            "Parquet and Arrow need pyarrow: pip install pyarrow; JSON Lines and CSV do not"
        ) from None
    return pyarrow


class ArrowTable:
    """Table of Arrow record batches. `batches` opens the table again and returns its batches."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        batches: Callable[[], AbstractContextManager[Iterable[Any]]],
        count: int | None = None,
    ) -> None:
        self.columns = tuple(column for column in columns if columns.count(column) == 1)
        self.repeated = tuple(sorted({*columns} - {*self.columns, ""}))
        self._is_empty = not columns
        self._name, self._batches, self._count = name, batches, count

    def rows(self) -> Iterator[InputRow]:
        pa, number = import_arrow(), 0
        try:
            with self._batches() as batches:
                for batch in batches:
                    for start in range(0, batch.num_rows, _BATCH_ROWS):
                        part = batch.slice(start, _BATCH_ROWS)
                        yield from _rows(pa, number + start, part)
                    number += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InvalidFile(self._name, f"cannot be read beyond row {number}: {error}") from error

    def may_have(self, column: str) -> bool:
        return column in self.columns or self._is_empty

    def expected_rows(self, read: int) -> int | None:  # noqa: ARG002 - others need it
        return self._count


def _rows(pa: Any, first: int, batch: Any) -> Iterator[InputRow]:
    """Yield the rows of a batch, without columns that share a name."""
    are_small = batch.nbytes <= ROW_BYTES
    mean_bytes = batch.nbytes // max(batch.num_rows, 1)
    names = batch.schema.names
    kept = [at for at, name in enumerate(names) if names.count(name) == 1]
    columns = [column_values(pa, batch.column(at)) for at in kept]
    named = [names[at] for at in kept]
    is_quick = all(are_json(pa, batch.column(at)) for at in kept)
    for number in range(batch.num_rows):
        values = dict(zip(named, (column[number] for column in columns), strict=True))
        row = first + number
        if problem := _problem(values):
            yield InputRow(row, 0, problem=problem)
            continue
        try:
            made = msgspec.to_builtins(values) if is_quick else plain(values)
        except NotJson as error:
            yield InputRow(row, 0, problem=f"the row is not JSON: {error}")
            continue
        assert isinstance(made, dict)
        if not are_small and len(_encode(made)) > ROW_BYTES:
            yield InputRow(row, 0, problem=too_large())
        else:
            yield InputRow(row, mean_bytes, made)


def _problem(values: dict[str, object]) -> str | None:
    for name, value in values.items():
        if isinstance(value, Unreadable):
            return f"column '{name}': {value.problem}"
    return None


def read_parquet(path: Path) -> ArrowTable:
    """Open a Parquet file.

    Raises:
        InvalidFile: it is not a Parquet file.
        SetupError: pyarrow is not installed.
    """
    pa = import_arrow()
    from pyarrow import parquet

    @contextmanager
    def batches() -> Iterator[Iterable[Any]]:
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            told = file.metadata
            groups = map(told.row_group, range(told.num_row_groups))
            mean_bytes = sum(each.total_byte_size for each in groups) // max(told.num_rows, 1)
            fitting = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(mean_bytes, 1)))
            yield file.iter_batches(batch_size=fitting, use_threads=False)

    try:
        with parquet.ParquetFile(path) as file:
            names, count = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InvalidFile(path, f"is not Parquet: {error}") from error
    return ArrowTable(str(path), names, batches, count)


def read_arrow(path: Path) -> ArrowTable:
    """Open an Arrow file or stream, whichever it is.

    Raises:
        InvalidFile: it is neither.
        SetupError: pyarrow is not installed.
    """
    pa = import_arrow()

    @contextmanager
    def reader() -> Iterator[Any]:
        with pa.memory_map(str(path)) as mapped:
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped) as opened:
                yield opened

    @contextmanager
    def batches() -> Iterator[Iterable[Any]]:
        with reader() as opened:
            if hasattr(opened, "num_record_batches"):
                yield map(opened.get_batch, range(opened.num_record_batches))
            else:
                yield opened

    try:
        with reader() as opened:
            names = tuple(opened.schema.names)
    except (pa.ArrowException, OSError) as error:
        raise InvalidFile(path, f"is neither an Arrow file nor an Arrow stream: {error}") from error
    return ArrowTable(str(path), names, batches)


def read_stream(source: Any) -> ArrowTable:
    """Open an object with `__arrow_c_stream__`, such as a pandas, polars or datasets table.

    It must return a new stream each time; a reader that can be used only once will not do.

    Raises:
        SetupError: pyarrow is not installed.
    """
    pa = import_arrow()

    def stream() -> Any:
        try:
            return pa.RecordBatchReader.from_stream(source)
        except (ValueError, TypeError) as error:
            raise SetupError(
                f"this {type(source).__name__} has no Arrow stream: {error}. Give each column one "
                "type and a name of its own, or give a list of dicts"
            ) from error

    with closing(stream()) as opened:
        names = tuple(opened.schema.names)
    count = len(source) if hasattr(source, "__len__") else None
    return ArrowTable(type(source).__name__, names, lambda: closing(stream()), count)


def write(
    file: BinaryIO,
    form: Format,
    columns: Sequence[str],
    rows: Callable[[], Iterator[dict[str, Any]]],
) -> None:
    """Write a table. `rows` is called twice: the first pass finds the types of the columns.

    A column is JSON text if its values have no common type, or one that the format cannot hold.
    """
    pa = import_arrow()
    schema = _schema(pa, columns, rows())
    with _writer(pa, file, form, schema) as writer:
        left = rows()
        while batch := list(islice(left, _BATCH_ROWS)):
            arrays = [_array(pa, [row.get(f.name) for row in batch], f.type) for f in schema]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _writer(pa: Any, file: BinaryIO, form: Format, schema: Any) -> Any:
    if form == "parquet":
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema, compression="zstd")
    return (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(file, schema)


def _schema(pa: Any, columns: Sequence[str], rows: Iterator[dict[str, Any]]) -> Any:
    types: dict[str, ColumnType] = dict.fromkeys(columns, NULL)
    mixed: set[str] = set()
    for row in rows:
        for name in types.keys() - mixed:
            try:
                types[name] = common_type(types[name], (row.get(name),))
            except NoCommonType:
                types[name] = TEXT
                mixed.add(name)
    return pa.schema([(name, to_arrow(pa, types[name])) for name in columns])


def _array(pa: Any, values: list[Any], column: Any) -> Any:
    if column == pa.string():
        return pa.array([_text(value) for value in values], column)
    return pa.array(values, column)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _encode(value).decode()


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
    return _arrow_type(pa, TEXT if found == NULL else found)


def _arrow_type(pa: Any, found: ColumnType) -> Any:
    match found:
        case str():
            return pa.int64() if found == _LONG else getattr(pa, found)()
        case [inner]:
            return pa.list_(_arrow_type(pa, inner))
        case dict():
            return pa.struct([(name, _arrow_type(pa, each)) for name, each in found.items()])
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
