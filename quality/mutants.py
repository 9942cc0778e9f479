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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from quality.copies import Copy, files_of
from quality.operators import Mutant, statements
from quality.reach import Reach
from quality.trial import Outcome, Result, judge
from quality.verdicts import FILE, Verdicts, row_of

GATE = (
    "not real and not kafka and not vllm and not frameworks and not soak and not acceptance"
    " and not browser and not long"
)
LIMIT_S = 60.0


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
    mutant: Mutant,
    result: Result,
    verdict: str,
    given: argparse.Namespace,
    number: int,
    of: int,
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
