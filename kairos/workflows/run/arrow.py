"""Tables in Parquet, Arrow files and streams, and objects with Arrow's C stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.workflows.compile.values import NotJson, plain
from kairos.workflows.run.arrow_values import Unreadable, are_json, column_values
from kairos.workflows.run.column_types import (
    NULL,
    TEXT,
    ColumnType,
    NoCommonType,
    common_type,
    to_arrow,
)
from kairos.workflows.run.rows import ROW_BYTES, InputRow, too_large

Format = Literal["parquet", "arrow", "arrows"]  # arrow: a file; arrows: a stream

_BATCH_BYTES, _BATCH_ROWS = 4 << 20, 1024
_encode = msgspec.json.Encoder().encode


def import_arrow() -> Any:
    """Return the module pyarrow.

    Raises:
        SetupError: it is not installed.
    """
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
            mean_bytes = _bytes(file.metadata) // max(file.metadata.num_rows, 1)
            fitting = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(mean_bytes, 1)))
            yield file.iter_batches(batch_size=fitting, use_threads=False)

    try:
        with parquet.ParquetFile(path) as file:
            names, count = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InvalidFile(path, f"is not Parquet: {error}") from error
    return ArrowTable(str(path), names, batches, count)


def _bytes(metadata: Any) -> int:
    groups = range(metadata.num_row_groups)
    return sum(metadata.row_group(group).total_byte_size for group in groups)


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
        for batch in _batched(rows(), _BATCH_ROWS):
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


def _batched(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, size)):
        yield batch
