"""The documentation's tables of figures: made of rows, which say what code they are of."""

import pytest

from bench import code, rows, tables
from bench.report import Figure, Spread
from bench.rows import Row

ROW = Row(
    bench="simulation",
    name=tables.TABLES["simulation"].figures[2],
    value=6.5,
    unit="s",
    target=None,
    reference=None,
    spread={"kairos": Spread(6.5, 6.1, 7.0, 3)},
    commit="abc",
    code="c0de",
    date="2026-11-23",
    machine="a machine, 2 cores",
)
TEXT = "Before.\n\n<!-- bench:simulation -->\nby hand\n<!-- /bench -->\n\nAfter.\n"


def test_a_table_is_written_between_its_markers_and_nowhere_else():
    made = tables.rewritten(TEXT, [ROW])
    assert made.startswith("Before.\n\n<!-- bench:simulation -->\n| | Kairos |")
    assert made.endswith("<!-- /bench -->\n\nAfter.\n")
    assert f"| {ROW.name} | 6.5 s [6.1-7] |" in made
    assert "Commit abc, 2026-11-23, a machine, 2 cores" in made


def test_writing_a_table_again_changes_nothing():
    once = tables.rewritten(TEXT, [ROW])
    assert tables.rewritten(once, [ROW]) == once
    assert tables.edited({"README.md": once}, [ROW]) == []


def test_a_table_that_was_edited_by_hand_is_found():
    made = tables.rewritten(TEXT, [ROW]).replace("6.5 s", "1.5 s")
    (wrong,) = tables.edited({"README.md": made}, [ROW])
    assert "make bench-tables" in wrong


def test_a_table_without_rows_stays_and_is_not_fresh():
    assert tables.rewritten(TEXT, []) == TEXT
    (wrong,) = tables.stale({"README.md": TEXT}, [], lambda _: "c0de")
    assert "no rows" in wrong


def test_a_table_of_other_code_is_found_with_the_command_that_renews_it():
    assert tables.stale({"README.md": TEXT}, [ROW], lambda _: "c0de") == []
    (wrong,) = tables.stale({"README.md": TEXT}, [ROW], lambda _: "other")
    assert "python -m bench.simulation" in wrong


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (14.9, "us", "14.9 µs"),
        (1_234.0, "us", "1,234 µs"),
        (2_500.0, "us", "2.5 ms"),
        (780_000.0, "us", "780 ms"),
        (4_300.0, "ms", "4.3 s"),
        (158_000.0, "/s", "158,000 per second"),
    ],
)
def test_quantities_are_told_in_a_unit_in_which_they_are_small(value, unit, said):
    assert tables.quantity(value, unit) == said


def test_the_documents_tables_are_what_their_rows_say():
    documents = {name: (code.ROOT / name).read_text() for name in tables.DOCUMENTS}
    assert tables.edited(documents, rows.read()) == []


def test_all_that_a_bench_measures_is_there():
    package = code.ROOT / "kairos"
    for bench, patterns in code.MEASURED.items():
        for pattern in patterns:
            assert list(package.glob(pattern)), (bench, pattern)
    assert all((code.ROOT / each).exists() for each in code._BESIDE)


def test_every_table_is_of_a_bench_whose_code_is_known():
    assert tables.TABLES.keys() <= code.MEASURED.keys()


def test_a_hash_tells_code_from_code_but_not_from_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "ROOT", tmp_path)
    path = tmp_path / "module.py"

    def of(source: str) -> str:
        path.write_text(source)
        return code.hash_of([path])

    first = of('"""A."""\nx = 1  # one\n')
    assert of('"""B."""\n\nx = 1\n') == first
    assert of('"""A."""\nx = 2  # one\n') != first


@pytest.mark.long
def test_kept_rows_take_the_place_of_earlier_ones_of_their_bench(tmp_path, monkeypatch):
    monkeypatch.setattr(rows.report, "RESULTS", tmp_path / "results.json")
    path = tmp_path / "results.jsonl"
    rows.write([ROW], path)
    spread = Spread(3.0, 2.0, 4.0, 5)
    figure = Figure(
        name="another", value=3.0, unit="us", target=4.0, detail={"kairos": spread, "note": 1}
    )

    rows.keep([figure], "learning", path)
    rows.keep([figure], "simulation", path)

    kept = rows.read(path)
    assert [(row.bench, row.name) for row in kept] == [
        ("learning", "another"),
        ("simulation", "another"),
    ]
    assert kept[0].spread == {"kairos": spread}
    assert kept[0].code == code.code_of("learning")
    assert kept[0].code != kept[1].code
