"""Tables by the suffix of their file: JSON Lines, CSV, Parquet and Arrow.

A written table appears whole, and never overwrites another file.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.workflows.compile.values import NotJson, plain
from kairos.workflows.run import arrow, delimited, json_lines
from kairos.workflows.run.rows import ROW_BYTES, InputRow, InputTable, too_large

Rows = Callable[[], Iterator[dict[str, Any]]]

_FORMATS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".arrows": "arrows",
}
_SEPARATORS = {"csv": None, "tsv": "\t"}  # None: found in the header; a comma is written


def open_table(source: object) -> InputTable:
    """Open a table: a file, an object with Arrow's C stream, or a sequence of mappings.

    A file's format follows from its suffix; JSON Lines and CSV may be packed by gzip.

    Raises:
        InvalidFile: the file is missing, or does not have the format of its suffix.
        SetupError: the source cannot be read as a table.
    """
    if isinstance(source, str | Path):
        return _open_file(Path(source))
    if hasattr(source, "__arrow_c_stream__"):
        return arrow.read_stream(source)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return MappingTable(source)
    raise SetupError(
        f"a {type(source).__name__} is not a table: give a file, a list of dicts, or an object "
        "with __arrow_c_stream__ (pandas, polars, pyarrow, datasets)"
    )


def _open_file(path: Path) -> InputTable:
    form = _format(path if path.suffix != ".gz" else path.with_suffix(""))
    match form:
        case "json":
            may_be_list = ".json" in path.suffixes[-2:]
            return json_lines.JsonLines(path, may_be_list=may_be_list)
        case "csv" | "tsv":
            return delimited.Csv(path, _SEPARATORS[form])
        case "parquet":
            return arrow.read_parquet(path)
    return arrow.read_arrow(path)


def check_format(path: Path) -> None:
    """Check that a table can be written in the format of the suffix.

    Raises:
        SetupError: the suffix is not known, or the format needs a package that is not installed.
    """
    if _format(path) not in ("json", "csv", "tsv"):
        arrow.import_arrow()


def write_table(path: Path, columns: Sequence[str], rows: Rows, part_of: str) -> None:
    """Write a table to a new file, in the format of its suffix.

    `rows` is called once or twice, and yields the same each time.

    Raises:
        SetupError: the suffix is not known, or a file has appeared there.
        OSError: the disk is full, or the like. Nothing is left.
    """
    form = _format(path)
    with new_file(path, part_of) as file:
        match form:
            case "json":
                json_lines.write(file, rows())
            case "csv" | "tsv":
                delimited.write(file, columns, rows(), _SEPARATORS[form] or ",")
            case "parquet" | "arrow" | "arrows":
                arrow.write(file, form, columns, rows)


def _format(path: Path) -> str:
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        what = f"its suffix '{path.suffix}'" if path.suffix else "a name without a suffix"
        raise SetupError(f"{path}: {what} is not a known format; known: {', '.join(_FORMATS)}")
    return found


class MappingTable:
    """Table of mappings that the caller holds."""

    repeated: tuple[str, ...] = ()

    def __init__(self, source: Sequence[Mapping[str, Any]]) -> None:
        self.columns = tuple(dict.fromkeys(str(name) for row in source for name in row))
        self._source = source

    def rows(self) -> Iterator[InputRow]:
        for number, row in enumerate(self._source):
            try:
                values = plain(dict(row))
            except NotJson as error:
                yield InputRow(number, 0, problem=f"the row is not JSON: {error}")
                continue
            assert isinstance(values, dict)
            size = len(msgspec.json.encode(values))
            if size > ROW_BYTES:
                yield InputRow(number, 0, problem=too_large())
            else:
                yield InputRow(number, size, values)

    def may_have(self, column: str) -> bool:
        return column in self.columns or not self._source

    def expected_rows(self, read: int) -> int | None:  # noqa: ARG002 - others need it
        return len(self._source)


def check_new(path: Path) -> None:
    """Raise SetupError if something exists at the path, or no file can be made there."""
    if os.path.lexists(path):
        raise SetupError(f"{path} exists: name another --out, or move it away")
    if not path.parent.is_dir():
        raise SetupError(f"there is no directory {path.parent}: make it, or name another --out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SetupError(f"no file can be made in {path.parent}: permission denied")


@contextmanager
def new_file(path: Path, part_of: str) -> Iterator[BufferedWriter]:
    """Yield a file that appears at `path`, whole and on disk, when the block ends without error.

    `part_of` names the temporary file, so that a retry replaces what a crash left. No other process
    may write with the same name at the same time.

    Raises:
        SetupError: another file has appeared there. The written file is left next to it.
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{part_of}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _move_into_place(part, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _move_into_place(part: Path, path: Path) -> None:
    """Move the file by a hard link: unlike a rename, it never replaces another file."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise SetupError(f"{path} was created by another process; the table is in {part}") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        check_new(path)  # on a file system without links
        part.rename(path)
    part.unlink(missing_ok=True)
