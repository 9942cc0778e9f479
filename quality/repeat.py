"""Whether a red test means a fault: the tests under load, and the slowest of them many times.

`python -m quality.repeat load RUNS` runs `make test` beside a busy process for each core;
`python -m quality.repeat flaky TIMES` runs the 100 slowest tests that many times. Each run is added
to `docs/quality/gate.jsonl` as soon as it has ended, with the tests that failed: what is stopped
with Ctrl-C has recorded the runs before. Both end with 1 where a test failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from quality import records

COSTS = records.ROOT / ".costs" / "test.jsonl"  # what `make test` writes
SLOWEST = 100
BUSY = "while True: pass"


def main() -> int:
    parser = argparse.ArgumentParser(prog="quality.repeat", description=__doc__)
    parser.add_argument("what", choices=["load", "flaky"])
    parser.add_argument("times", type=int)
    chosen = parser.parse_args()
    runs = [_run(chosen.what, number) for number in range(chosen.times)]
    red = sorted({test for failed in runs for test in failed})
    print(f"{chosen.what}: {sum(map(bool, runs))} of {len(runs)} runs had a failed test")
    print("\n".join(red))
    return 1 if red else 0


def slowest(count: int = SLOWEST, costs: Path = COSTS) -> list[str]:
    """Return the tests that took longest in the last `make test`. Raises `SystemExit`, with what
    to do, where none is recorded."""
    if not costs.exists():
        raise SystemExit("flaky: run `make test` first: it records how long each test takes")
    found = [json.loads(line) for line in costs.read_text().splitlines()]
    found.sort(key=lambda each: -each["wall"])
    return [each["test"] for each in found[:count]]


def _run(what: str, number: int) -> list[str]:
    """Run once, record the run, and return the tests that failed."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        started = time.monotonic()
        if what == "load":
            with _busy_processes(len(os.sched_getaffinity(0))):
                status = _call(["make", "test"], PYTEST_ADDOPTS=f"--junitxml={report}")
        else:
            pytest = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile"]
            status = _call([*pytest, f"--junitxml={report}", *slowest()])
        failed = list(failed_tests(report)) if report.exists() else ["no report was written"]
    seconds = round(time.monotonic() - started)
    if status and not failed:
        failed = [f"ended with {status}"]
    records.append(records.GATE, kind=what, run=number + 1, seconds=seconds, failed=failed)
    print(f"{what}: run {number + 1}, {seconds} s, failed: {', '.join(failed) or 'none'}")
    return failed


def _call(command: list[str], **environment: str) -> int:
    changed = {**os.environ, **environment}
    return subprocess.run(command, cwd=records.ROOT, env=changed, check=False).returncode


def failed_tests(report: Path) -> Iterator[str]:
    """Yield the names of tests that failed or broke, as a JUnit report has them."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; the runs that had ended are recorded")
