import json

import pytest

from quality import gate, records


def test_the_most_expensive_tests_are_named_and_a_selection_above_its_limit(tmp_path):
    costs = [
        {"test": f"tests/test_{n}.py::test", "wall": 1.0, "own": float(n), "started": 30.0}
        for n in range(30)
    ]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, costs)))
    told = "\n".join(gate.told_tests(tmp_path))
    assert "1335  test: 30 tests" in told
    assert "above the 1000" in told
    assert told.index("test_29") < told.index("test_10")
    assert "test_9.py" not in told


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "GATE", tmp_path / "gate.jsonl")

    def record(**steps):
        record = {"at": "2026-11-28", "machine": "slow one", "kind": "gate", "steps": steps}
        records.GATE.write_text(json.dumps(record))

    return record


def test_a_run_within_its_minutes_says_no_more_than_that(recorded):
    assert gate.told_whole(1499, {"tests": 1499}) == ["", "The gate took 24:59 of 25:00 minutes."]


def test_a_run_that_is_too_long_names_the_steps_that_grew(recorded):
    recorded(install=300, tests=400, docs=5, lint=20)
    told = gate.told_whole(1600, {"install": 310, "tests": 900, "docs": 9, "lint": 21, "new": 60})
    assert told[-1] == (
        "TOO LONG; steps that grew since 2026-11-28 (slow one): tests 400 -> 900 s, new 0 -> 60 s"
    )


def test_a_slow_machine_is_said_to_be_one(recorded):
    recorded(install=300, tests=400, lint=20)
    told = gate.told_whole(2000, {"install": 600, "tests": 800, "lint": 21})
    assert "this machine is slow" in told[-1]


def test_a_run_that_is_too_long_needs_no_record(recorded):
    assert gate.told_whole(1600, {"tests": 1600})[-1].startswith("TOO LONG")
