import json
from pathlib import Path

import pytest

from quality import records, repeat

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="passes"/>
<testcase classname="tests.test_a" name="fails"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="breaks"><error message="no"/></testcase>
<testcase classname="tests.test_a" name="skips"><skipped/></testcase>
</testsuite></testsuites>"""


def test_the_slowest_tests_are_named_slowest_first(tmp_path):
    costs = tmp_path / "test.jsonl"
    costs.write_text("\n".join(json.dumps({"test": f"t{n}", "wall": n % 7}) for n in range(200)))
    found = repeat.slowest(3, costs)
    assert [int(name[1:]) % 7 for name in found] == [6, 6, 6]


def test_without_a_run_that_recorded_costs_the_reader_learns_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match="make test"):
        repeat.slowest(3, tmp_path / "none.jsonl")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "GATE", tmp_path / "gate.jsonl")
    return lambda: [*records.read(records.GATE)]


def test_each_run_is_recorded_with_the_tests_that_failed(recorded, monkeypatch):
    def call(command, **environment):
        path = environment["PYTEST_ADDOPTS"].removeprefix("--junitxml=")
        Path(path).write_text(REPORT)
        return 1

    monkeypatch.setattr(repeat, "_call", call)
    failed = repeat._run("load", 0)
    assert failed == ["tests.test_a::fails", "tests.test_a::breaks"]
    assert [(each["kind"], each["run"], each["failed"]) for each in recorded()] == [
        ("load", 1, failed)
    ]


def test_a_run_that_ended_badly_without_a_failed_test_is_red_as_well(recorded, monkeypatch):
    monkeypatch.setattr(repeat, "_call", lambda command, **_: 2)
    assert repeat._run("load", 0) == ["no report was written"]
    assert recorded()[0]["failed"]
