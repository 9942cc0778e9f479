"""Which tests reach a line of the product: probed once, and kept below `.mutants/`.

What is kept is of one state of the product's sources and one selection of tests. Of these, a file
of tests is probed again when it has changed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

from quality.copies import Copy
from quality.operators import Mutant
from quality.plugin import digest, note

FOLDER = ".mutants"
_SHOWN = 4000  # characters of what pytest prints


class Reaching(NamedTuple):
    """One test that passes without a fault."""

    name: str
    file: str
    seconds: float


class Reach:
    """Of one selection of tests in one copy of the checkout."""

    def __init__(self, checkout: Path, copy: Copy, selection: str, processes: int) -> None:
        self._copy, self._selection, self._processes = copy, selection, processes
        sources = sorted((copy.folder / "kairos").rglob("*.py"))
        whole = hashlib.sha256(selection.encode())
        for each in sources:
            whole.update(f"\0{each.relative_to(copy.folder)}\0".encode() + each.read_bytes())
        self._folder = checkout / FOLDER / whole.hexdigest()[:16]
        self._texts = {
            str(each.relative_to(copy.folder)): each.read_text()
            for each in sorted((copy.folder / "tests").rglob("test_*.py"))
        }

    def probe(self) -> Iterator[str]:
        """Run tests that are new or changed; yield what there is to say about it."""
        new = [file for file in self._texts if not self._is_known(file)]
        if not new:
            return
        yield f"probing which lines {len(new)} files of tests reach; kept in {self._folder}"
        code, printed = self._copy.pytest(
            (
                *("-p", "quality.plugin", "-m", self._selection, "--hypothesis-seed=0"),
                *(("-n", str(self._processes), "--dist", "loadfile") if len(new) > 1 else ()),
                *new,
            ),
            {"KAIROS_REACH": str(self._folder)},
        )
        if code not in (0, 1, 5):
            raise RuntimeError(f"the tests cannot be run:\n{printed[-_SHOWN:]}")
        for file in new:
            if not self._is_known(file):  # no test of it is in the selection
                note(self._folder, file, self._copy.folder / file, {})
        yield printed.strip().rpartition("\n")[2] + f" (exit code {code})"

    def _is_known(self, file: str) -> bool:
        known = self._folder / f"{file}.json"
        if not known.exists():
            return False
        return bool(json.loads(known.read_bytes())["hash"] == digest(self._copy.folder / file))

    def tests_of(self, mutant: Mutant) -> tuple[list[Reaching], bool]:
        """Return the tests to run, those of its own module first, then the quickest; and whether
        they reach the fault. Where none is seen to, they are those that import its module, which
        may start processes that reach it."""
        found = dict.fromkeys(self._reaching(mutant))
        is_reached = bool(found)
        if not found:
            found = dict.fromkeys(self._importing(mutant.file))
        own = f"test_{Path(mutant.file).stem}.py"
        names = _imports(mutant.file)

        def rank(test: Reaching) -> tuple[int, float]:
            is_own = Path(test.file).name == own
            return (0 if is_own else 1 if names.search(self._texts[test.file]) else 2, test.seconds)

        return sorted(found, key=rank), is_reached or mutant.at_import

    def _reaching(self, mutant: Mutant) -> Iterator[Reaching]:
        for file in self._texts:
            reached = _reached(self._folder, file, mutant.file)
            lines: Iterable[int] = reached if mutant.at_import else mutant.lines
            contexts = {each for line in lines for each in reached.get(line, ())}
            yield from (test for test in self.tests(file) if test.name in contexts)

    def _importing(self, module: str) -> Iterator[Reaching]:
        names = _imports(module)
        for file, text in self._texts.items():
            if names.search(text):
                yield from self.tests(file)

    def tests(self, file: str) -> list[Reaching]:
        """Return those of a file that pass without a fault."""
        return _tests(self._folder, file)


@cache
def _tests(folder: Path, file: str) -> list[Reaching]:
    found = json.loads((folder / f"{file}.json").read_bytes())["tests"]
    return [Reaching(name, file, seconds) for name, (seconds, passes) in found.items() if passes]


@cache
def _reached(folder: Path, file: str, module: str) -> Mapping[int, list[str]]:
    path = folder / f"{file}.coverage"
    if not path.exists():
        return {}
    data = CoverageData(str(path))
    data.read()
    found = data.contexts_by_lineno(module)
    data.close()
    return found


@cache
def _imports(module: str) -> re.Pattern[str]:
    """Return what a file that imports a module has in it."""
    parts = module.removesuffix(".py").removesuffix("/__init__").split("/")
    whole, package, name = ".".join(parts), ".".join(parts[:-1]), parts[-1]
    return re.compile(rf"\b{re.escape(whole)}\b|from {re.escape(package)} import .*\b{name}\b")
