"""The documentation's tables of figures: made of rows, which say what code they are of."""

from bench import code, rows, tables
from bench.report import Spread
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


def test_a_table_of_other_code_is_found_with_the_command_that_renews_it():
    assert tables.stale({"README.md": TEXT}, [ROW], lambda _: "c0de") == []
    (wrong,) = tables.stale({"README.md": TEXT}, [ROW], lambda _: "other")
    assert "python -m bench.simulation" in wrong


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
