"""Whether tests notice a fault."""

import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from quality.copies import Copy
from quality.operators import Mutant
from quality.reach import Reach, Reaching

_FILES = 40  # in one run of pytest: the next are not collected if one of these notices
_START_S = 10.0  # to start pytest and import what a test needs, on a busy machine
_OWN_S = 5.0  # tests that are run first, before more files are collected


class Outcome(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    TIMEOUT = "timeout"  # not all tests were run, or they hang that are long anyway
    NOT_REACHED = "not reached"


class Result(NamedTuple):
    outcome: Outcome
    by: str
    reaching: int  # tests
    seconds: float


def judge(mutant: Mutant, copy: Copy, reach: Reach, limit_s: float) -> Result:
    """Run the tests that reach a fault until one fails."""
    began = time.monotonic()
    tests, is_reached = reach.tests_of(mutant)
    if not tests:
        return Result(Outcome.NOT_REACHED, "", 0, 0.0)
    source = (copy.folder / mutant.file).read_bytes()
    copy.write(mutant.file, mutant.applied(source))
    try:
        outcome, by = _run(tests, copy, began + limit_s)
    finally:
        copy.write(mutant.file, source)
    if outcome is Outcome.SURVIVED and not is_reached:
        outcome = Outcome.NOT_REACHED
    return Result(outcome, by, len(tests) if is_reached else 0, round(time.monotonic() - began, 2))


def _run(tests: Sequence[Reaching], copy: Copy, until: float) -> tuple[Outcome, str]:
    for part in _parts(tests):
        left_s = until - time.monotonic()
        usual_s = sum(test.seconds for test in part)
        if usual_s > left_s:
            part = _within(part, left_s)  # noqa: PLW2901
            if not part:
                return Outcome.TIMEOUT, ""
            usual_s = sum(test.seconds for test in part)
        limit_s = min(left_s, _START_S + 4 * usual_s)
        code, by = _pytest(part, copy, limit_s)
        if code is None:
            hangs = usual_s <= limit_s / 2
            return (Outcome.KILLED, "it hangs") if hangs else (Outcome.TIMEOUT, "")
        if code not in (0, 5):
            return Outcome.KILLED, by
    return (Outcome.SURVIVED, "") if time.monotonic() < until else (Outcome.TIMEOUT, "")


def _parts(tests: Sequence[Reaching]) -> list[list[Reaching]]:
    """Return the tests by run of pytest: a few files first, which notice most faults."""
    parts: list[list[Reaching]] = [[]]
    files: set[str] = set()
    for test in tests:
        first = len(parts) == 1
        is_long = first and sum(each.seconds for each in parts[-1]) > _OWN_S
        if test.file not in files and (len(files) >= (3 if first else _FILES) or is_long):
            parts.append([])
            files = set()
        parts[-1].append(test)
        files.add(test.file)
    return parts


def _within(tests: Sequence[Reaching], left_s: float) -> list[Reaching]:
    found, used_s = [], 0.0
    for test in tests:
        used_s += test.seconds
        if used_s > left_s:
            break
        found.append(test)
    return found


def _pytest(tests: Sequence[Reaching], copy: Copy, limit_s: float) -> tuple[int | None, str]:
    files = dict.fromkeys(test.file for test in tests)
    with tempfile.TemporaryDirectory() as folder:
        order, failed = Path(folder, "order"), Path(folder, "failed")
        order.write_text("\n".join(test.name for test in tests))
        code, printed = copy.pytest(
            ("-x", "-p", "quality.order", "--hypothesis-seed=0", *files),
            {"KAIROS_ORDER": str(order), "KAIROS_FAILED": str(failed)},
            limit_s,
        )
        by = failed.read_text() if failed.exists() else printed.strip().rpartition("\n")[2]
    return code, by
