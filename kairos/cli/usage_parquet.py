"""Usage as a Parquet file, for tables of several periods: each row names its period."""

from pathlib import Path
from typing import Any

import msgspec

from kairos.host import atomic_write
from kairos.observe import UsageFigures, UsageReport
from kairos.workflows import import_arrow

_AT_ONCE = 8_192  # groups


def write_parquet(path: Path, report: UsageReport, currency: str | None) -> None:
    """Write all groups, most service first, without a total.

    Columns are the period (UTC, µs), the names as grouped (null: not declared by the calls), and
    the figures; with prices also `cost` and its `currency`. Raises SetupError: The file cannot be
    written, or pyarrow is not installed.
    """
    pyarrow = import_arrow()
    from pyarrow import parquet

    kinds: dict[Any, Any] = {int: pyarrow.int64(), float: pyarrow.float64()}
    figures = {each.name: kinds[each.type] for each in msgspec.structs.fields(UsageFigures)}
    if currency is None:
        del figures["cost"]
    instant = pyarrow.timestamp("us", "UTC")
    schema = pyarrow.schema(
        [("period_begins", instant), ("period_ends", instant)]
        + [(name, pyarrow.string()) for name in report.by]
        + [*figures.items()]
        + ([] if currency is None else [("currency", pyarrow.string())])
    )
    period = {"period_begins": report.begins_at, "period_ends": report.ends_at}
    fixed = period if currency is None else period | {"currency": currency}
    with atomic_write(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(report.groups), _AT_ONCE):
            some = report.groups[start : start + _AT_ONCE]
            rows = [
                {**fixed, **dict(zip(report.by, group, strict=True)), **msgspec.structs.asdict(had)}
                for group, had in some
            ]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
