from pathlib import Path

import pytest

from quality import records, repeat

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="passes"/>
<testcase classname="tests.test_a" name="fails"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="breaks"><error message="no"/></testcase>
<testcase classname="tests.test_a" name="skips"><skipped/></testcase>
</testsuite></testsuites>"""


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
