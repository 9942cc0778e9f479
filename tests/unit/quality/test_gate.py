import json

import pytest

from quality import gate, records


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "GATE", tmp_path / "gate.jsonl")

    def record(**steps):
        record = {"at": "2026-11-28", "machine": "slow one", "kind": "gate", "steps": steps}
        records.GATE.write_text(json.dumps(record))

    return record


def test_a_run_that_is_too_long_names_the_steps_that_grew(recorded):
    recorded(install=300, tests=400, docs=5, lint=20)
    told = gate.told_whole(1600, {"install": 310, "tests": 900, "docs": 9, "lint": 21, "new": 60})
    assert told[-1] == (
        "TOO LONG; steps that grew since 2026-11-28 (slow one): tests 400 -> 900 s, new 0 -> 60 s"
    )
