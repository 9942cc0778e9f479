"""Every type of Arrow's, by every way in, with pandas and without."""

import base64
import json
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from kairos.core import SetupError
from kairos.workflows.run.arrow import read_stream
from kairos.workflows.run.tables import open_table, write_table

AT = datetime(2026, 1, 2, 3, 4, 5)
NS = 1767323045_000_000_000  # the same, in ns
WORDS = pa.array(["x", "y"])

# Arrays of a value and what it is read as; all but unions have a null as well.
TYPES = {
    "null": (pa.array([None, None]), None),
    "bool": (pa.array([True, None]), True),
    "uint64": (pa.array([2**64 - 1, None], pa.uint64()), 2**64 - 1),
    "int8": (pa.array([-128, None], pa.int8()), -128),
    "float16": (pa.array([1.5, None], pa.float16()), 1.5),
    "float32": (pa.array([1.5, None], pa.float32()), 1.5),
    "nan": (pa.array([float("nan"), None]), None),
    "infinity in a list": (pa.array([[float("inf"), 1.0], None]), [None, 1.0]),
    "decimal128": (pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)), "1.50"),
    "decimal256": (pa.array([Decimal("-1.50"), None], pa.decimal256(50, 2)), "-1.50"),
    "string": (pa.array(["é", None]), "é"),
    "large string": (pa.array(["é", None], pa.large_string()), "é"),
    "string view": (pa.array(["é", None], pa.string_view()), "é"),
    "binary": (pa.array([b"ab", None]), "YWI="),
    "large binary": (pa.array([b"ab", None], pa.large_binary()), "YWI="),
    "fixed binary": (pa.array([b"ab", None], pa.binary(2)), "YWI="),
    "date32": (pa.array([date(2026, 1, 2), None]), "2026-01-02"),
    "date64": (pa.array([date(2026, 1, 2), None], pa.date64()), "2026-01-02"),
    "date far away": (pa.array([4_000_000, None], pa.date32()), "12921-08-18"),
    "time32": (pa.array([time(3, 4, 5), None], pa.time32("s")), "03:04:05"),
    "time64 us": (pa.array([time(3, 4, 5, 6), None], pa.time64("us")), "03:04:05.000006"),
    "time64 ns": (pa.array([1, None], pa.time64("ns")), "00:00:00.000000001"),
    "timestamp s": (pa.array([AT, None], pa.timestamp("s")), "2026-01-02T03:04:05"),
    "timestamp us": (pa.array([AT, None], pa.timestamp("us", "UTC")), "2026-01-02T03:04:05Z"),
    "timestamp ns, whole": (pa.array([NS, None], pa.timestamp("ns")), "2026-01-02T03:04:05"),
    "timestamp ns, us": (
        pa.array([NS + 6000, None], pa.timestamp("ns")),
        "2026-01-02T03:04:05.000006",
    ),
    "timestamp ns": (
        pa.array([NS + 1, None], pa.timestamp("ns", "UTC")),
        "2026-01-02T03:04:05.000000001Z",
    ),
    "timestamp before 1970": (
        pa.array([-1, None], pa.timestamp("ns")),
        "1969-12-31T23:59:59.999999999",
    ),
    "timestamp of a zone": (
        pa.array([NS + 1, None], pa.timestamp("ns", "Europe/Berlin")),
        "2026-01-02T04:04:05.000000001+01:00",
    ),
    "timestamp of an offset": (
        pa.array([NS, None], pa.timestamp("ns", "-03:30")),
        "2026-01-01T23:34:05-03:30",
    ),
    "timestamp far away": (
        pa.array([10**12, None], pa.timestamp("s", "UTC")),
        "33658-09-27T01:46:40Z",
    ),
    "duration s": (pa.array([timedelta(1, 2), None], pa.duration("s")), "P1DT2S"),
    "duration ns": (pa.array([-1_500_000_001, None], pa.duration("ns")), "-PT1.500000001S"),
    "duration ns, whole": (pa.array([86_400 * 10**9, None], pa.duration("ns")), "P1D"),
    "duration far away": (pa.array([2**62, None], pa.duration("s")), "P53375995583650DT27904S"),
    "interval": (pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), [1, 2, 3]),
    "list": (pa.array([[1, None], None]), [1, None]),
    "list of instants": (
        pa.array([[NS, None], None], pa.list_(pa.timestamp("ns"))),
        ["2026-01-02T03:04:05", None],
    ),
    "large list": (pa.array([[1], None], pa.large_list(pa.int64())), [1]),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [1, 2]),
    "list view": (pa.array([[1], None], pa.list_view(pa.int64())), [1]),
    "struct": (pa.array([{"a": 1, "b": None}, None]), {"a": 1, "b": None}),
    "struct of instants": (
        pa.array([{"a": [NS]}, None], pa.struct([("a", pa.list_(pa.timestamp("ns")))])),
        {"a": ["2026-01-02T03:04:05"]},
    ),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [["k", 1]]),
    "map of instants": (
        pa.array([[("k", NS)], None], pa.map_(pa.string(), pa.timestamp("ns"))),
        [["k", "2026-01-02T03:04:05"]],
    ),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), "x"),
    "dictionary of instants": (
        pa.array([NS, None], pa.timestamp("ns")).dictionary_encode(),
        "2026-01-02T03:04:05",
    ),
    "runs": (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["x", None])), "x"),
    "union": (
        pa.UnionArray.from_sparse(pa.array([1, 0], pa.int8()), [pa.array([1, None]), WORDS]),
        "x",
    ),
    "uuid": (pa.array([bytes(16), None], pa.uuid()), "00000000-0000-0000-0000-000000000000"),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())), True),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]", None])), "[1]"),
}
NOT_IN_PARQUET = ("union", "interval", "runs", "list view", "duration s", "duration far away")


def values(source):
    return [row.values["x"] for row in open_table(source).rows()]


@pytest.mark.parametrize("name", TYPES)
def test_a_value_of_any_type_is_read_by_every_way_in(tmp_path, name):
    array, expected = TYPES[name]
    table = pa.table({"x": array})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "t.arrows", table.schema) as writer:
        writer.write_table(table)
    ways = [table, tmp_path / "t.arrow", tmp_path / "t.arrows"]
    if name not in NOT_IN_PARQUET:
        parquet.write_table(table, tmp_path / "t.parquet")
        ways.append(tmp_path / "t.parquet")

    for way in ways:
        found = values(way)
        assert found == [expected, None], way
        assert [*map(type, found)] == [type(expected), type(None)]


@pytest.mark.parametrize("name", TYPES)
def test_where_pyarrow_and_json_know_a_value_it_is_read_as_they_have_it(name):
    array, expected = TYPES[name]
    if "far away" in name or name in ("time64 ns", "nan", "infinity in a list"):
        return
    of_pyarrow = array.to_pylist()[0]
    if isinstance(of_pyarrow, bytes):
        assert base64.b64decode(expected) == of_pyarrow
    elif isinstance(of_pyarrow, pd.Timestamp | pd.Timedelta):
        whole = isinstance(of_pyarrow, pd.Timestamp) and not of_pyarrow.nanosecond
        assert not whole or expected == msgspec.to_builtins(of_pyarrow.to_pydatetime())
    elif isinstance(of_pyarrow, bool | int | float | str | date | time | Decimal | None):
        assert json.loads(msgspec.json.encode(of_pyarrow)) == expected


def test_it_does_not_matter_whether_pandas_is_installed(tmp_path):
    for name in ("timestamp ns", "duration ns", "list of instants", "time64 ns"):
        with pa.ipc.new_file(
            tmp_path / f"{name}.arrow", pa.schema([("x", TYPES[name][0].type)])
        ) as w:
            w.write_table(pa.table({"x": TYPES[name][0]}))
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from pathlib import Path\n"
        "from kairos.workflows.run.tables import open_table\n"
        "for path in sorted(Path(sys.argv[1]).glob('*.arrow')):\n"
        "    print(*[row.values for row in open_table(path).rows()], sep='|')\n"
    )
    without = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [
        "|".join(str(row.values) for row in open_table(path).rows())
        for path in sorted(Path(tmp_path).glob("*.arrow"))
    ]
    assert without.stdout.splitlines() == lines, without.stderr


def test_a_text_that_is_not_utf_8_fails_its_row_alone():
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    first, second, third = open_table(pa.table({"x": texts})).rows()

    assert (first.values, third.values) == ({"x": "a"}, {"x": "c"})
    assert second.problem.startswith("column 'x': 'utf-8' codec can't decode")


def test_columns_of_the_same_name_are_left_out(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    found = open_table(tmp_path / "t.arrow")

    assert (found.columns, found.repeated) == (("b",), ("a",))
    assert [row.values for row in found.rows()] == [{"b": 2}]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1, "x"]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"a": [object()]}),
    ],
)
def test_a_frame_that_arrow_does_not_take_is_refused_in_words(frame):
    with pytest.raises(SetupError, match=r"this DataFrame has no Arrow stream: .*a list of dicts"):
        read_stream(frame)


WRITTEN = {
    "small and fraction": ([1, 0.5], [1.0, 0.5]),
    "long": ([2**60 + 1, 2], [2**60 + 1, 2]),
    "long and fraction": ([2**60 + 1, 0.5], [str(2**60 + 1), "0.5"]),
    "fraction, then long": ([0.5, -(2**53) - 1], ["0.5", str(-(2**53) - 1)]),
    "longest exact": ([2**53, 0.5], [float(2**53), 0.5]),
    "beyond 64 bits": ([2**63, 1], [str(2**63), "1"]),
    "long in lists": ([[2**60 + 1], [0.5]], [f"[{2**60 + 1}]", "[0.5]"]),
    "bool and number": ([True, 1], ["true", "1"]),
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_are_written_without_losing_digits(tmp_path, name, suffix):
    given, expected = WRITTEN[name]
    path = tmp_path / f"t{suffix}"
    write_table(path, ("x",), lambda: ({"x": each} for each in given), part_of="run")

    assert values(path) == expected
