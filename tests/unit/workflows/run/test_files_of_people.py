"""Tables as spreadsheets, libraries and people write them."""

import codecs
import csv
import gzip
import io
import json
import tracemalloc

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kairos.core import SetupError
from kairos.workflows import Passes
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.declare.yaml_file import read_yaml
from kairos.workflows.run.flow_file import check_columns
from kairos.workflows.run.rows import ROW_BYTES
from kairos.workflows.run.tables import open_table, write_table
from tests.support.examples import examples

FLOW = """
flow: t
operators:
  row: {kind: input}
  a: {kind: format, template: '{{ row.text }}'}
outputs: {id: row.id, a: a}
"""


def plan(flow=FLOW):
    return compile_plan(read_yaml(flow), Passes())


def table(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(path)


def by_id(rows):
    return {row.values["id"]: row.values for row in rows if row.values}


def troubles(rows):
    return [row.problem for row in rows if row.problem]


def of_csv(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


# Quotes of every kind that people leave behind: what Python's csv reads alike, row by row.
LIKE_CSV = {
    "inch": 'id,text\n1,plain\n2,a 5" disk\n3,next\n4,last\n',
    "inch twice": 'id,text\n1,a 5" x 7" card\n2,next\n',
    "inch in two rows": 'id,text\n1,5" disk\n2,next\n3,7" disk\n4,last\n',
    "inch at the end": 'id,text\n1,disk of 5"\n2,next\n',
    "nickname": 'id,text\n1,Bob "the man" X\n2,next\n',
    "quoted start": 'id,text\n1,"Best" phone ever\n2,next\n',
    "quoted start, more quotes": 'id,text\n1,"Best" and "worst"\n2,next\n',
    "blank before a quote": 'id,text\n1, "not quoted\n2,next\n',
    "doubled": 'id,text\n1,"say ""hi"", then"\n2,""""\n3,""\n4,next\n',
    "doubled outside": 'id,text\n1,say ""hi""\n2,next\n',
    "lines": 'id,text\n1,"one\ntwo\r\nthree ""four""\n"\n2,next\n',
    "separators at the end": "id,text,,\n1,x,,\n2,y,,\n",
    "carriage returns": 'id,text\r1,one\r2,"t""wo"\r3,three\r',
    "both ends": "id,text\r\n1,one\n2,two\r\n",
    "one return": "id,text\n1,one\r2,two\n3,three\n",
    "no last end": "id,text\n1,one\n2,two",
    "blank lines": "id,text\n\n1,one\n\n\n2,two\n\n",
    "zero byte": "id,text\n1,o\0ne\n2,two\n",
}


@pytest.mark.parametrize("name", LIKE_CSV)
def test_csv_is_read_as_pythons_csv_reads_it(tmp_path, name):
    text = LIKE_CSV[name]
    rows = list(table(tmp_path / "t.csv", text).rows())

    assert troubles(rows) == []
    expected = [{name: row[name] for name in ("id", "text")} for row in of_csv(text)]
    assert [{name: row.values[name] for name in ("id", "text")} for row in rows] == expected


# A quote that opens a cell and is never closed: the record that has it, and how many more, fail.
STRAY = {
    "at the end": '{0}"open',
    "before plain rows": '{0}"open\n5,plain\n6,plain',
    "before quoted rows": '{0}"open\n5,"fine, quoted"\n6,plain',
    "before doubled quotes": '{0}"open\n5,""\n6,"a ""b"""\n7,plain',
    "before inches": '{0}"open\n5,a 5" disk\n6,7" disk\n7,plain',
    "before another": '{0}"open\n5,"open, too\n6,plain',
    "before lines in quotes": '{0}"open\n5,"two\nlines"\n6,plain',
    "in the second line of a cell": '{0}"one\ntwo",x"\n5,plain\n6,plain',
}


@pytest.mark.parametrize("name", STRAY)
def test_a_stray_quote_fails_its_own_record_and_swallows_no_other(tmp_path, name):
    text = "id,text\n1,one\n2,two\n" + STRAY[name].format("4,") + "\n"
    text += "".join(f"{number},row\n" for number in range(100, 3000))
    rows = list(table(tmp_path / "t.csv", text).rows())
    found = by_id(rows)

    assert set(found) >= {"1", "2", *map(str, range(100, 3000))}
    assert 1 <= len(troubles(rows)) <= 2
    assert all("line" in each for each in troubles(rows))
    for number in ("5", "6", "7"):
        said = [line for line in text.splitlines() if line.startswith(number + ",")]
        if said and said[0].count('"') % 2 == 0:
            assert number in found, rows[:9]


def test_rows_that_a_stray_quote_joins_to_one_that_does_not_fit_are_rows(tmp_path):
    text = 'id,text,n\n4,"open,1\n5,plain,2\n6,plain,of 5"\n7,plain,3\n'
    rows = list(table(tmp_path / "t.csv", text).rows())

    assert [row.problem is None for row in rows] == [False, True, True, True]


def test_a_stray_quote_with_more_behind_it_than_a_row_may_have_fails_alone(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write('id,text\n1,"open\n')
        for number in range(2, 14):
            file.write(f"{number},{'x' * (1 << 20)}\n")
        file.write('14,5" disk\n15,last\n')

    rows = list(open_table(path).rows())
    assert [row.problem is not None for row in rows] == [True] + [False] * 14
    assert rows[0].problem.startswith("line 2: a quote that opens here is never closed")


CELLS = st.text(st.sampled_from(',;\t"\r\n ab\x00é'), max_size=6)


@examples(200)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=8),
    width=st.integers(1, 3),
    end=st.sampled_from(["\n", "\r\n"]),
    style=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_whatever_pythons_csv_writes_is_read_again(tmp_path_factory, rows, width, end, style):
    text = io.StringIO(newline="")
    # Python before 3.13 quotes no carriage return unless it ends the lines.
    writer = csv.writer(text, lineterminator=end, quoting=style if end == "\r\n" else csv.QUOTE_ALL)
    names = ("a", "b", "c")[:width]
    writer.writerow(names)
    writer.writerows(row[:width] for row in rows)
    read = table(tmp_path_factory.mktemp("t") / "t.csv", text.getvalue())

    found = [tuple(row.values[name] for name in names) for row in read.rows()]
    kept = [row[:width] for row in rows]
    if width > 1:
        assert found == kept
    else:
        assert [each for each in found if each[0]] == [each for each in kept if each[0]]


@examples(100)
@given(rows=st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS}), max_size=8))
def test_what_is_written_as_csv_is_read_alike_by_csv_by_pandas_and_here(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    write_table(path, ("a", "b"), lambda: iter(rows), part_of="run")

    assert [row.values for row in open_table(path).rows()] == rows
    assert of_csv(path.read_bytes().decode()) == rows
    if not any("\0" in cell for row in rows for cell in row.values()):
        as_texts = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[])
        assert as_texts.to_dict("records") == rows


TEXT = "id,text\n1,größe\n2,日本\n"
ENCODED = {
    "utf-8": TEXT.encode(),
    "mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16-le": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "utf-16-be": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "utf-32-le": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "utf-32-be": codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
    "returns in utf-16": TEXT.replace("\n", "\r").encode("utf-16"),
    "excel's sep": b"sep=;\r\n" + TEXT.replace(",", ";").encode(),
    "semicolons": TEXT.replace(",", ";").encode(),
    "excel's unicode text": TEXT.replace(",", "\t").encode("utf-16"),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ENCODED)
def test_encodings_and_separators_of_spreadsheets_are_read(tmp_path, name, pack):
    found = table(tmp_path / "t.csv", pack(ENCODED[name]))

    assert found.columns == ("id", "text")
    assert [row.values["text"] for row in found.rows()] == ["größe", "日本"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_json_lines_may_have_any_byte_order_mark(tmp_path, encoding):
    lines = '{"text": "größe"}\n' * 30_000
    found = table(tmp_path / "t.jsonl", lines.encode(encoding))

    assert sum(row.values == {"text": "größe"} for row in found.rows()) == 30_000


def test_half_a_surrogate_pair_fails_its_row_alone(tmp_path):
    text = "id,text\n1,a\ud800\n2,b\n".encode("utf-16-le", "surrogatepass")
    rows = list(table(tmp_path / "t.csv", codecs.BOM_UTF16_LE + text).rows())

    assert [row.problem is None for row in rows] == [False, True]


NOTHING = {
    "t.jsonl": b"",
    "blank.jsonl": b"\n \n",
    "t.jsonl.gz": gzip.compress(b""),
    "t.json": b"[]",
    "spaced.json": b" [ \n ]\n",
    "t.csv": b"",
    "pandas.csv": b"\n",
    "header.csv": b"id,text\n",
    "t.tsv": b"id\ttext\n",
    "mark.csv": codecs.BOM_UTF8,
}


def test_a_table_without_rows_is_one_in_every_format(tmp_path):
    found = {name: table(tmp_path / name, content) for name, content in NOTHING.items()}
    found["list"] = open_table([])
    found["pandas"] = open_table(pd.DataFrame())
    for form, frame in (("bare", pa.table({})), ("typed", pa.table({"id": [], "text": []}))):
        parquet.write_table(frame, tmp_path / f"{form}.parquet")
        found[f"{form}.parquet"] = open_table(tmp_path / f"{form}.parquet")
        with pa.ipc.new_file(tmp_path / f"{form}.arrow", frame.schema) as writer:
            writer.write_table(frame)
        found[f"{form}.arrow"] = open_table(tmp_path / f"{form}.arrow")

    for name, each in found.items():
        check_columns(plan(), each)
        assert list(each.rows()) == [], name


def test_a_column_may_come_late_and_one_that_never_comes_is_refused(tmp_path):
    lines = b'{"id": 1}\n' * 500 + b'{"id": 2, "text": "late"}\n'
    check_columns(plan(), table(tmp_path / "late.jsonl", lines))
    array = b"[" + b",".join(lines.splitlines()) + b"]"
    check_columns(plan(), table(tmp_path / "late.json", array))
    check_columns(plan(), open_table([{"id": 1}] * 500 + [{"id": 2, "text": "late"}]))

    with pytest.raises(SetupError, match="the table has no column 'text', which the flow needs"):
        check_columns(plan(), table(tmp_path / "never.jsonl", b'{"id": 1}\n' * 500))


def test_objects_may_begin_late(tmp_path):
    rows = list(table(tmp_path / "t.jsonl", b"broken\n" * 300 + b'{"id": 1}\n').rows())

    assert [row.problem is None for row in rows] == [False] * 300 + [True]


REPEATED = {
    "empty headers": ("id,text,,\n1,x,,\n", FLOW, None),
    "empty headers, shorter rows": ("id,text,,\n1,x\n", FLOW, None),
    "separators beyond the header": ("id,text\n1,x,,\n", FLOW, None),
    "not needed": ("id,text,n,n\n1,x,2,3\n", FLOW, None),
    "needed": ("id,text,text\n1,x,y\n", FLOW, "two columns of the table are called 'text'"),
    "the row as a whole": (
        "id,text,n,n\n1,x,2,3\n",
        FLOW.replace("id: row.id", "id: row"),
        "two columns of the table are called 'n'",
    ),
    "the row as a whole, empty headers": (
        "id,text,,\n1,x,,\n",
        FLOW.replace("row.id", "row"),
        None,
    ),
    "one without a name": ("id,text,\n1,x,y\n", FLOW, None),
}


@pytest.mark.parametrize("name", REPEATED)
def test_columns_that_nobody_needs_may_be_called_alike(tmp_path, name):
    text, flow, refused = REPEATED[name]
    found = table(tmp_path / "t.csv", text)
    if refused:
        with pytest.raises(SetupError, match=refused):
            check_columns(plan(flow), found)
        return
    check_columns(plan(flow), found)
    (row,) = found.rows()
    assert {row.values["id"], row.values["text"]} == {"1", "x"}


LISTS = {
    "compact": json.dumps([{"a": 1}, {"a": 'x "]}, \\" [{'}, {"a": [1, [2], {"b": 3}]}]),
    "indented": json.dumps([{"a": 1}, {"a": "two"}, {"a": None}], indent=2),
    "pandas": pd.DataFrame({"a": [1.5, None], "b": ["x", "é"]}).to_json(orient="records"),
    "backslashes": json.dumps([{"a": "\\" * n} for n in range(9)]),
    "long": json.dumps([{"a": "y" * 70_000, "n": n} for n in range(5)]),
    "blank": " \n[\n]",
}


@pytest.mark.parametrize("piece", [1, 3, 1 << 16])
@pytest.mark.parametrize("name", LISTS)
def test_a_json_file_may_be_one_list(tmp_path, monkeypatch, name, piece):
    if piece > 3 or len(LISTS[name]) < 1000:
        monkeypatch.setattr("kairos.workflows.run.lines._PIECE_BYTES", max(piece, 4))
    found = table(tmp_path / "t.json", LISTS[name])

    assert [row.values for row in found.rows()] == json.loads(LISTS[name])


def test_an_item_of_a_list_that_is_no_object_or_too_large_fails_alone(tmp_path):
    large = b'{"a": "' + b"x" * (2 * ROW_BYTES) + b'"}'
    content = b'[{"a": 1}, 2, {"a": }, ' + large + b', {"a": 5}]'
    found = table(tmp_path / "t.json", content)
    tracemalloc.start()
    rows = list(found.rows())

    assert tracemalloc.get_traced_memory()[1] < 4 * ROW_BYTES
    tracemalloc.stop()
    assert [row.values for row in rows] == [{"a": 1}, None, None, None, {"a": 5}]
    assert "item 3: the row is larger than 10 MiB" in troubles(rows)


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    values = {"a": float("nan"), "b": [float("inf"), -float("inf"), 1], "c": 'NaN "Infinity" \\'}
    found = table(tmp_path / "t.jsonl", json.dumps(values))

    assert [row.values for row in found.rows()] == [values | {"a": None, "b": [None, None, 1]}]
