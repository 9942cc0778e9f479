"""Plug into pytest for mutants: write down what each test reaches, or run tests in an order.

For each file of tests there are two files below `$KAIROS_REACH`: coverage.py's data, with a
context for each test, and the seconds and outcome of each test. Lines that are run when a module is
imported belong to no test.

The tests named in `$KAIROS_ORDER` are run in that order, and no others; the first that fails is
written to `$KAIROS_FAILED`.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import coverage
import pytest

_QUIET = ("already-imported", "module-not-imported", "no-data-collected", "trace-changed")


def pytest_configure(config: pytest.Config) -> None:
    # A tree of another time may not know a marker of the selection.
    for name in set(re.findall(r"\w+", config.option.markexpr)) - {"not", "and", "or"}:
        config.addinivalue_line("markers", f"{name}: named by the selection")
    if folder := os.environ.get("KAIROS_REACH"):
        config.pluginmanager.register(Probe(Path(folder)))
    if order := os.environ.get("KAIROS_ORDER"):
        names = Path(order).read_text().splitlines()
        config.pluginmanager.register(Order(names, Path(os.environ["KAIROS_FAILED"])))


class Probe:
    """Coverage of the file of tests that is being run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = ""
        self._coverage: coverage.Coverage | None = None
        self._tests: dict[str, tuple[float, bool]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._end_file()
            self._begin_file(file)
        assert self._coverage is not None
        self._coverage.switch_context(item.nodeid)
        self._tests[item.nodeid] = (0.0, True)
        began = time.perf_counter()
        done = yield
        self._tests[item.nodeid] = (time.perf_counter() - began, self._tests[item.nodeid][1])
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid in self._tests:
            self._tests[report.nodeid] = (0.0, False)

    def pytest_sessionfinish(self) -> None:
        self._end_file()

    def _begin_file(self, file: str) -> None:
        data = self._folder / f"{file}.coverage"
        data.parent.mkdir(parents=True, exist_ok=True)
        data.unlink(missing_ok=True)
        self._file, self._tests = file, {}
        made = coverage.Coverage(
            data_file=str(data), config_file=False, include=["kairos/*"], messages=False
        )
        made.set_option("run:relative_files", True)
        made.set_option("run:disable_warnings", list(_QUIET))
        made.start()
        self._coverage = made

    def _end_file(self) -> None:
        if self._coverage is None:
            return
        self._coverage.stop()
        self._coverage.save()
        self._coverage = None
        note(self._folder, self._file, Path(self._file), self._tests)


class Order:
    """Runs tests in an order, and notes the first that fails."""

    def __init__(self, names: Sequence[str], failed: Path) -> None:
        self._place = {name: number for number, name in enumerate(names)}
        self._failed = failed

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield  # whatever else sorts them
        place = self._place
        left_out = [item for item in items if item.nodeid not in place]
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )
        config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid)


def note(folder: Path, file: str, source: Path, tests: Mapping[str, tuple[float, bool]]) -> None:
    """Write what is known of a file of tests, so that a probe that is stopped goes on after it."""
    written = folder / f"{file}.json"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps({"hash": digest(source), "tests": tests}))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
