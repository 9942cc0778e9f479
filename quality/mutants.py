"""`python -m quality.mutants --seed 1 --count 120`: how many small faults do tests notice?

Draws faults at random over all statements of the product, puts each into a copy of the checkout and
runs the tests that reach its line, until one fails. With the same seed and sources the faults are
the same, whatever the tests: `--tree REV` and `--selection` compare two suites.

A fault that survives is a hole in the tests, or one that nobody can notice, or one that nobody
needs to: the verdict belongs into docs/quality/mutants.toml. Ends with 1 where a survivor has none.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from quality.copies import Copy, files_of
from quality.operators import Mutant, statements
from quality.reach import Reach, Reaching

GATE = (
    "not real and not kafka and not ray and not vllm and not frameworks and not soak"
    " and not acceptance"
    " and not browser and not long"
)
LIMIT_S = 60.0
_FILES = 40  # in one run of pytest: the next are not collected if one of these notices
_START_S = 10.0  # to start pytest and import what a test needs, on a busy machine
_OWN_S = 5.0  # tests that are run first, before more files are collected
FILE = "docs/quality/mutants.toml"
KINDS = ("mended", "equivalent", "accepted")
_KEY = ("file", "where", "source", "what")

Key = tuple[str, ...]


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


class Verdicts:
    """By fault: a test notices it now, nobody can notice it, or nobody needs to."""

    def __init__(self, path: Path) -> None:
        self._kinds: dict[Key, str] = {}
        rows = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
        for row in rows:
            key = tuple(row[name] for name in _KEY)
            if row["verdict"] not in KINDS or not row["why"].strip():
                raise ValueError(f"{path}: no verdict, or no reason: {row}")
            if key in self._kinds:
                raise ValueError(f"{path}: twice: {row}")
            self._kinds[key] = row["verdict"]

    def of(self, mutant: Mutant) -> str:
        """Return the verdict; empty if there is none."""
        return self._kinds.get(_key(mutant), "")


def draw(checkout: Path, seed: int, count: int, below: str = "kairos/") -> list[Mutant]:
    """Return one fault of each of so many statements, all of which are equally likely."""
    found = []
    for file in files_of(checkout):
        if file.endswith(".py") and file.startswith("kairos/") and file.startswith(below):
            found += statements(file, (checkout / file).read_bytes())
    dice = random.Random(seed)
    drawn = dice.sample(found, min(count, len(found)))
    return [dice.choice(each.mutants) for each in drawn]


def judged(
    mutants: Iterable[Mutant], copies: Sequence[Copy], reach: Reach, limit_s: float
) -> Iterator[tuple[Mutant, Result]]:
    """Yield each with its result, in their order; one at a time in each copy."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def in_a_copy(mutant: Mutant) -> Result:
        copy = free.get()
        try:
            return judge(mutant, copy, reach, limit_s)
        finally:
            free.put(copy)

    mutants = list(mutants)
    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            yield from zip(mutants, pool.map(in_a_copy, mutants), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


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
            ("-x", "-p", "quality.plugin", "--hypothesis-seed=0", *files),
            {"KAIROS_ORDER": str(order), "KAIROS_FAILED": str(failed)},
            limit_s,
        )
        by = failed.read_text() if failed.exists() else printed.strip().rpartition("\n")[2]
    return code, by


def main(arguments: Sequence[str] | None = None, checkout: Path | None = None) -> int:
    given = _options().parse_args(arguments)
    checkout = checkout or Path(__file__).parents[1]
    verdicts = Verdicts(checkout / FILE)
    counts: Counter[str] = Counter()
    open_ones: list[Mutant] = []
    with ExitStack() as stack:
        copies = []
        for _ in range(given.jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
            copies.append(Copy(checkout, Path(folder).resolve(), given.tree))
        try:
            reach = Reach(checkout, copies[0], given.selection, given.jobs + 1)
            for line in reach.probe():
                print(line, flush=True)
            mutants = draw(checkout, given.seed, given.count, given.below)
            for mutant, result in judged(mutants, copies, reach, given.limit_s):
                verdict = verdicts.of(mutant)
                counts[result.outcome] += 1
                if result.outcome in (Outcome.SURVIVED, Outcome.NOT_REACHED) and not verdict:
                    open_ones.append(mutant)
                _tell(mutant, result, verdict, given, sum(counts.values()), len(mutants))
        except KeyboardInterrupt:
            print("stopped; so far:", flush=True)
    print(", ".join(f"{counts[each]} {each}" for each in Outcome))
    if open_ones:
        print(f"\nwithout a verdict in {FILE}:\n")
        print("\n".join(map(row_of, open_ones)))
    return 1 if open_ones else 0


def _tell(
    mutant: Mutant, result: Result, verdict: str, given: argparse.Namespace, number: int, of: int
) -> None:
    by = f" by {result.by}" if result.by else f" ({verdict})" if verdict else ""
    print(
        f"[{number}/{of}] {mutant.file}:{mutant.line} {mutant.where}: {mutant.what}\n"
        f"    {result.outcome}{by}; {result.reaching} tests reach it; {result.seconds:.1f} s",
        flush=True,
    )
    if given.out:
        row = {
            "seed": given.seed,
            "tree": given.tree,
            "selection": given.selection,
            "file": mutant.file,
            "where": mutant.where,
            "line": mutant.line,
            "source": mutant.source,
            "what": mutant.what,
            **result._asdict(),
            "verdict": verdict,
        }
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def row_of(mutant: Mutant) -> str:
    """Return what to write into the file, with the verdict left open."""
    texts = zip(_KEY, _key(mutant), strict=True)
    lines = "".join(f"{name} = {_quoted(text)}\n" for name, text in texts)
    return f'[[mutant]]\n{lines}verdict = ""\nwhy = ""\n'


def _key(mutant: Mutant) -> Key:
    return (mutant.file, mutant.where, mutant.source, mutant.what)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quality.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--count", type=int, default=120, help="of faults")
    parser.add_argument("--selection", default=GATE, help="marker expression of pytest")
    parser.add_argument("--tree", default="", help="commit whose tests are run")
    parser.add_argument("--below", default="kairos/", help="draw only from files below this path")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for each fault")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once, each in a copy")
    parser.add_argument("--out", type=Path, help="file to which results are appended, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
