"""Write a run's results as tables, in the order of rows: outputs and errors."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kairos.workflows.declare.openai_batch import LINE_NAME
from kairos.workflows.run.result_store import ResultStore
from kairos.workflows.run.tables import check_new, write_table

ROW = "row"  # column with the row's number, unless the flow has an output of this name
_ERROR_COLUMNS = (ROW, "operator", "error")
_RETRY_S = 5.0

Stat = tuple[int, int]  # bytes, and ns of the last change


def errors_path(out: Path) -> Path:
    return out.with_name(f"{out.stem}.errors{out.suffix}")


def check_outputs(out: Path, written: dict[str, Stat]) -> None:
    """Check that the tables can be written. `written`: files that the run itself wrote.

    Raises:
        SetupError: they cannot; nothing was changed.
    """
    for path in (out, errors_path(out)):
        if not _is_own(path, written):
            check_new(path)


class Tables:
    """Tables of a finished run."""

    def __init__(
        self,
        store: ResultStore,
        out: Path,
        outputs: tuple[str, ...],
        stage: int,
        rows: list[int],
        names: Callable[[], Iterator[object]] | None = None,
    ) -> None:
        """Prepare the tables.

        `outputs`: the columns of `out`. `stage`: 1 if rows were gathered into groups, else 0.
        `rows`: their number, by stage. `names`: yields the names of the input rows, if the flow
        names them.
        """
        self._store, self._out, self._outputs = store, out, outputs
        self._stage, self._rows, self._names = stage, rows, names

    async def write(
        self, run_id: str, written: dict[str, Stat], on_trouble: Callable[[str | None], None]
    ) -> dict[str, Stat]:
        """Write the files, and return them. Waits while the disk is full, and reports that.

        Raises:
            SetupError: a file exists there that the run did not write.
            OSError: a file cannot be written.
        """
        is_told = False
        while True:
            try:
                done = await asyncio.to_thread(self._write, run_id, written)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not is_told:
                    on_trouble(str(error))
                is_told = True
                await asyncio.sleep(_RETRY_S)
            else:
                if is_told:
                    on_trouble(None)
                return done

    def _write(self, run_id: str, written: dict[str, Stat]) -> dict[str, Stat]:
        own = () if ROW in self._outputs else (ROW,)
        tables = [(self._out, (*own, *self._outputs), self._written)]
        if next(self._failed(), None) is not None:
            columns = _ERROR_COLUMNS if self._names is None else (LINE_NAME, *_ERROR_COLUMNS)
            tables.append((errors_path(self._out), columns, self._failed))
        for path in (self._out, errors_path(self._out)):
            if _is_own(path, written):
                path.unlink()
        for path, columns, rows in tables:
            write_table(path, columns, rows, part_of=run_id)
        return {str(path): _stat(path) for path, _, _ in tables}

    def _written(self) -> Iterator[dict[str, Any]]:
        for row, values in self._store.written(self._stage, self._rows[self._stage]):
            yield {ROW: row, **values}

    def _failed(self) -> Iterator[dict[str, Any]]:
        """Yield failed rows, then failed groups, which have numbers of their own."""
        names = enumerate(self._names()) if self._names is not None else iter(())
        for stage, rows in enumerate(self._rows):
            for each in self._store.failed(stage, rows):
                named = {}
                if self._names is not None and stage == 0:
                    named = {LINE_NAME: next((name for at, name in names if at == each.row), None)}
                yield {**named, ROW: each.row, "operator": each.node, "error": each.error}


def _is_own(path: Path, written: dict[str, Stat]) -> bool:
    """Return whether a file is unchanged since the run wrote it."""
    return path.is_file() and written.get(str(path)) == _stat(path)


def _stat(path: Path) -> Stat:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
