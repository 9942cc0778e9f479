import gzip
import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kairos.core import InvalidFile, SetupError
from kairos.workflows.run import tables
from kairos.workflows.run.rows import ROW_BYTES, InputRow
from kairos.workflows.run.tables import check_format, open_table, write_table
from tests.support.examples import examples

ROWS = [{"id": 1, "text": "one"}, {"id": 2, "text": 'two, "2"\nand a line'}, {"id": 3, "text": ""}]
SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".arrows", ".feather")


def written(path, rows, columns=("id", "text")):
    write_table(path, columns, lambda: iter(rows), part_of="run")
    return path


def values(source):
    return [row.values for row in open_table(source).rows()]


def problems(source):
    return {row.number: row.problem for row in open_table(source).rows() if row.problem}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = written(tmp_path / f"table{suffix}", ROWS)
    expected = (
        ROWS if suffix not in (".csv", ".tsv") else [row | {"id": str(row["id"])} for row in ROWS]
    )

    assert open_table(path).columns == ("id", "text")
    assert values(path) == expected
    assert [row.number for row in open_table(path).rows()] == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_json_lines_may_be_packed_and_have_empty_lines_and_a_mark(tmp_path, pack):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(pack(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"b": [1, {"c": null}]}'))

    assert values(path) == [{"a": 1}, {"b": [1, {"c": None}]}]
    assert open_table(path).columns == ("a", "b")


def test_a_line_that_is_no_object_is_one_row_that_cannot_be_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    deep = "[" * 100_000
    path.write_bytes(
        b'{"a": 1}\n{"a": \n[2]\n{"a": "\xff"}\n{"a":' + deep.encode() + b'\n{"a": 6}\n'
    )

    assert [row.values for row in open_table(path).rows() if row.values] == [{"a": 1}, {"a": 6}]
    assert list(problems(path)) == [1, 2, 3, 4]
    assert all(
        f"line {number + 1} is not a JSON" in each for number, each in problems(path).items()
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".arrow"])
def test_a_row_of_over_10_mib_is_one_row_that_cannot_be_read(tmp_path, suffix):
    line = 'a "quoted" line of many\n' + "x" * 100
    large = "x" * (3 * ROW_BYTES) if suffix != ".csv" else line * (ROW_BYTES // 50)
    path = written(tmp_path / f"t{suffix}", [ROWS[0], {"id": 2, "text": large}, ROWS[2]])

    assert [row and row["text"] for row in values(path)] == ["one", None, ""]
    assert ["larger than 10 MiB" in each for each in problems(path).values()] == [True]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_of_a_row_that_is_too_large_no_more_than_the_bound_is_held(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    with path.open("wb") as file:
        file.write(b'{"a": "' if suffix == ".jsonl" else b'a\n"')
        for _ in range(12):
            file.write((b"x" * 999 + (b"\n" if suffix == ".csv" else b"x")) * 5000)
        file.write(b'"}\n{"a": 1}\n' if suffix == ".jsonl" else b'"\n1\n')
    tracemalloc.start()

    assert [row.problem is None for row in open_table(path).rows()] == [False, True]
    assert tracemalloc.get_traced_memory()[1] < 4 * ROW_BYTES
    tracemalloc.stop()


def test_csv_is_read_as_the_standard_says(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,"b ""c""",\r\n1,"x\r\ny",\r\n\r\n2,,"z"\r\n')

    assert values(path) == [
        {"a": "1", 'b "c"': "x\r\ny", "": ""},
        {"a": "2", 'b "c"': "", "": "z"},
    ]


def test_a_quote_within_a_value_without_quotes_loses_no_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n5" screen,1\n7" screen,2\nlast,3\n')

    assert [row["b"] for row in values(path)] == ["1", "2", "3"]


def test_a_record_that_does_not_fit_its_header_cannot_be_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n1,2\n1\n1,2,3\n\xff,2\n"open,1\n1,2\n')

    assert problems(path) == {
        1: "line 3: 1 values for 2 columns",
        2: "line 4: 3 values for 2 columns",
        3: "line 5: this is not UTF-8; save it as UTF-8",
        4: "line 6: a quote that opens here is never closed: close it, or double the quotes of "
        "a value",
    }


def test_what_json_does_not_know_is_read_as_text(tmp_path):
    path = tmp_path / "t.parquet"
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    parquet.write_table(pa.table({"at": [at], "raw": [b"ab"], "list": [[1, 2]]}), path)

    assert values(path) == [{"at": "2026-01-02T03:04:05Z", "raw": "YWI=", "list": [1, 2]}]


def test_parquet_is_read_across_row_groups_and_says_how_many_rows_it_has(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"n": list(range(5000))}), path, row_group_size=700)
    table = open_table(path)

    assert table.expected_rows(0) == 5000
    assert [row.values["n"] for row in table.rows()] == list(range(5000))
    assert [row.number for row in table.rows()] == list(range(5000)), "read again, from the start"


class Streams:
    """As other libraries' tables show themselves."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_any_object_with_arrows_stream_is_a_table_that_is_read_more_than_once():
    table = open_table(Streams(pa.table({"n": list(range(3000))})))

    assert table.columns == ("n",)
    assert [row.values["n"] for row in table.rows()] == list(range(3000))
    assert len(list(table.rows())) == 3000


def test_a_list_of_mappings_is_a_table():
    table = open_table([{"a": 1}, {"b": "x" * ROW_BYTES}])

    assert table.columns == ("a", "b")
    first, second = table.rows()
    assert first == InputRow(0, 7, {"a": 1})
    assert second.problem == "the row is larger than 10 MiB"


def test_how_many_rows_there_are_is_estimated_from_what_was_read(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 100_000)
    table = open_table(path)
    rows = table.rows()
    for _ in range(50_000):
        next(rows)

    assert 95_000 < table.expected_rows(50_000) < 105_000


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.jsonl", None, "cannot be read: "),
        ("t.jsonl", b"[]\n1\n", "no row is a JSON object"),
        ("t.json", b'[{"a": 1}', "the list at its start is not closed"),
        ("t.json", b'[{"a": 1}] {}', "the list at its start is not closed"),
        ("t.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-20], "cannot be read: "),
        ("t.csv", b'"a\n', "no column names: a quote that opens here is never closed"),
        ("t.csv", "a,b\n".encode("utf-16-le"), "this is not UTF-8; save the file as UTF-8"),
        ("t.parquet", b"PAR1", "is not Parquet: "),
        ("t.arrow", b"ARROW1", "is neither an Arrow file nor an Arrow stream: "),
        ("t.xlsx", b"", "its suffix '.xlsx' is not a known format; known: .jsonl, "),
        ("t", b"", "a name without a suffix is not a known format"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_words(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SetupError, match=r"(?s).*") as told:
        list(open_table(path).rows())
    assert str(path) in str(told.value)
    assert says in str(told.value)


def test_what_is_no_table_is_refused_in_words():
    with pytest.raises(SetupError, match="a dict is not a table: give a file, a list of dicts"):
        open_table({"a": 1})


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    for use in (open_table, check_format):
        with pytest.raises(SetupError, match=r"pip install pyarrow"):
            use(tmp_path / "t.parquet")
    check_format(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_of_mixed_types_have_a_common_one_or_are_json(tmp_path, suffix):
    rows = [
        {"n": 1, "o": {"a": 1}, "m": "text", "e": {}, "l": [1]},
        {"n": 2.5, "o": {"a": 2, "b": "x"}, "m": {"k": [1]}, "e": {}, "l": None},
        {"n": None, "o": None, "m": None, "e": None, "l": [2.5]},
    ] + [{}] * 2000
    path = written(tmp_path / f"t{suffix}", rows, ("n", "o", "m", "e", "l", "never"))
    read = values(path)

    assert [row["n"] for row in read[:3]] == [1, 2.5, None]
    assert read[1]["o"] == {"a": 2, "b": "x"}
    assert [row["m"] for row in read[:3]] == ["text", '{"k":[1]}', None]
    assert [row["e"] for row in read[:2]] == ["{}", "{}"]
    assert [row["l"] for row in read[:3]] == [[1], None, [2.5]]
    assert len(read) == 2003


def test_an_empty_table_has_its_columns(tmp_path):
    for suffix in (".csv", ".parquet", ".arrow"):
        path = written(tmp_path / f"t{suffix}", [])
        assert open_table(path).columns == ("id", "text")
        assert values(path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_takes_nobodys_place_and_leaves_nothing_half_done(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"

    def broken():
        yield ROWS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_table(path, ("id", "text"), broken, part_of="run")
    assert list(tmp_path.iterdir()) == []

    path.write_text("precious")
    with pytest.raises(SetupError, match="was created by another process"):
        written(path, ROWS)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_a_row_of_empty_values_is_a_row_and_an_empty_line_is_none(tmp_path, suffix, separator):
    lines = [separator.join(each) for each in ("ab", ("", ""), "xy", (" ", ""))]
    path = tmp_path / f"t{suffix}"
    path.write_text("\n".join([*lines, "", " ", ""]))
    assert [[*each.values()] for each in values(path)] == [["", ""], ["x", "y"], [" ", ""]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@examples(60)
@given(
    rows=st.lists(st.fixed_dictionaries({"a": JSON, "b": JSON}), max_size=20),
    suffix=st.sampled_from(SUFFIXES),
)
def test_any_json_comes_back_or_its_text(tmp_path_factory, rows, suffix):
    path = tmp_path_factory.mktemp("t") / f"t{suffix}"
    written(path, rows, ("a", "b"))
    read = values(path)

    assert len(read) == len(rows)
    for was, now in zip(rows, read, strict=True):
        for name in ("a", "b"):
            assert same(was[name], now[name], suffix)


def same(was, now, suffix):
    """A column of one type is kept; another is JSON text. CSV has text alone."""
    if suffix == ".jsonl":
        return was == now
    text = was if isinstance(was, str) else "" if was is None else msgspec.json.encode(was).decode()
    if suffix in (".csv", ".tsv"):
        return now == text
    return now == text or filled(was) == filled(now)


def filled(value):
    """Objects without what is null: a column's objects have all fields that one of them has."""
    match value:
        case dict():
            return {name: filled(each) for name, each in value.items() if each is not None}
        case list():
            return [filled(each) for each in value]
    return value


def test_rows_are_never_all_in_memory(tmp_path):
    path = tmp_path / "t.jsonl"
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(line * 1000)
    tracemalloc.start()

    assert sum(1 for _ in open_table(path).rows()) == 20_000
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_tables_are_for_files_that_can_be_read_again(tmp_path):
    __import__("os").mkfifo(tmp_path / "pipe.jsonl")

    with pytest.raises(InvalidFile, match="not a regular file"):
        open_table(tmp_path / "pipe.jsonl")


def test_every_format_that_is_named_can_be_read(tmp_path):
    for suffix in tables._FORMATS:
        assert len(values(written(Path(tmp_path) / f"t{suffix}", ROWS))) == 3
