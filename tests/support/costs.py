"""Seconds that each test takes, and the order in which files are given to processes.

`--costs FILE` writes one line of JSON for each test: `test`, `wall` (seconds), `own` (CPU seconds
of the test process) and `started` (CPU seconds of processes that it started and waited for), set-up
and teardown included. What a test leaves running until a later test ends it counts there.

Files are run longest first, by the seconds in `tests/durations.json` (`make durations` writes it):
then no process works alone at the end, nor waits alone. One without an entry is taken to be of
middle length.
"""

import json
import resource
import time
from pathlib import Path

import pytest

from tests.support.host import forked

DURATIONS = Path(__file__).parents[1] / "durations.json"
UNKNOWN_S = 1.0


def pytest_addoption(parser):
    parser.addoption("--costs", metavar="FILE", help="write each test's seconds into this file")


def pytest_configure(config):
    path = config.getoption("--costs")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs(Path(path)), "costs")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    durations = recorded_durations()
    items.sort(key=lambda item: -durations.get(file_of(item.nodeid), UNKNOWN_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[_BEFORE] = _seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.when == "teardown":
        after, before = _seconds(), item.stash[_BEFORE]
        report.cost = [round(now - then, 3) for now, then in zip(after, before, strict=True)]
    return report


class Costs:
    """The file of `--costs`, written by the process that hands out the tests."""

    def __init__(self, path):
        self._path, self._lines = path, []

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            wall, own, started = report.cost
            line = {"test": report.nodeid, "wall": wall, "own": own, "started": started}
            self._lines.append(json.dumps(line))

    def pytest_sessionfinish(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w") as file:
            file.writelines(f"{line}\n" for line in self._lines)


def recorded_durations():
    """Return seconds by file of tests; empty where nothing is recorded."""
    return json.loads(DURATIONS.read_bytes()) if DURATIONS.exists() else {}


def file_of(nodeid):
    """Return the file that holds a test, relative to the checkout."""
    return nodeid.partition("::")[0]


_BEFORE = pytest.StashKey()


def _seconds():
    own = resource.getrusage(resource.RUSAGE_SELF)
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.perf_counter(),
        own.ru_utime + own.ru_stime,
        started.ru_utime + started.ru_stime + sum(forked.SPENT),
    )


def record_durations(costs=Path(".costs/test.jsonl")):
    """Write the seconds of each file of the last `make test`, for the order of the next."""
    found = {}
    for line in costs.read_text().splitlines():
        cost = json.loads(line)
        name = file_of(cost["test"])
        found[name] = found.get(name, 0) + cost["wall"]
    rounded = {name: round(seconds, 1) for name, seconds in sorted(found.items())}
    DURATIONS.write_text(json.dumps(rounded, indent=0) + "\n")


if __name__ == "__main__":
    record_durations()
