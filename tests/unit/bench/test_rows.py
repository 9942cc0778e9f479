"""Rows are of the code that was measured."""

import pytest

from bench import report, rows
from bench.report import Figure


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    path = tmp_path / "rows.jsonl"

    def keep(value):
        rows.keep([Figure(name="calls", value=value, unit="", target=None)], "fairness", path)
        return [row.value for row in rows.read(path)]

    return keep


@pytest.mark.long
def test_the_latest_figures_are_kept(kept):
    assert kept(1.0) == [1.0]
    assert kept(2.0) == [2.0]


def test_nothing_is_kept_where_code_has_changed_since_the_measurement_began(
    kept, monkeypatch, capsys
):
    kept(1.0)
    monkeypatch.setattr(rows, "_BEGAN_AT", 0.0)
    assert kept(2.0) == [1.0]
    assert "code has changed" in capsys.readouterr().err
