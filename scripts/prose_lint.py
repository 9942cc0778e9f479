#!/usr/bin/env python3
"""Check how plainly Kairos is worded, against budgets by folder that only shrink.

    python -m scripts.prose_lint                  check the whole checkout, as `make lint` does
    python -m scripts.prose_lint FILE_OR_DIR ...  print the texts there that break a rule
    python -m scripts.prose_lint --shrink         lower the budgets to what is there
    python -m scripts.prose_lint --subjects       check the subjects of commits since the rule began

Checked are docstrings, `help=`, `description=` and `summary=`, messages of errors and of the log,
help of metrics, labels of the page, the documentation and the changelog. A text breaks a rule if it
opens without a subject or a verb ("Of one instance.", "Those that ..."), uses a headless relative
("whoever", "of which"), or one of a few words that the field does not use. Breaches of ruff's rules
D205, D415 and D417 are counted, too. `docs/quality/prose.json` has the budgets: the number of such
texts by folder. A folder that is not in it may have none.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = ROOT / "docs" / "quality" / "prose.json"
RUFF = ("D205", "D415", "D417")
SUBJECTS_SINCE = "104b936c49492862850905fa45a208112fe3ac8a"
SUBJECT_LENGTH = 72

OPENING = re.compile(
    r"^(Of|By|With|For|In|At|To|From|Beside|Without|Within|Until|After|Before|Among|On|Out of|"
    r"Beyond|Into|It|Its|They|Their|Those|These|That|One|Some|Each|Nobody|Nothing|Somebody|Such|Others|What|Who|Whose|"
    r"Whoever|Whatever|Whom)\b"
)
RULES = {
    "so many / so much": r"\bso (?:many|much)\b",
    "whoever / whatever": r"\b(?:whoever|whatever)\b",
    "those that / those who": r"\bthose (?:that|who|of|in|which)\b",
    "of which / of whom": r"\bof (?:which|whom)\b",
    "beside": r"\bbeside\b",
    "anew / of late / meanwhile / by and by": r"\b(?:anew|of late|meanwhile|by and by)\b",
    "told / said / heard, of data": r"\b(?:is|are|was|were) (?:told|said|heard)\b|\bhears? of\b",
    "is none / is no X": r"(?<!\bthere )\b(?:is|are) (?:none|no [a-z]+)\b",
    "is over": r"\bis over\b",
    "gives way": r"\bgives? way\b",
    "Ours.": r"\bOurs\b",
}
_COMPILED = {
    name: re.compile(rule, 0 if name == "Ours." else re.IGNORECASE) for name, rule in RULES.items()
}
KEYWORDS = {"help", "description", "summary"}
LOGS = {"debug", "info", "warning", "error", "exception", "critical", "echo"}
METRIC = re.compile(r"(Counter|Gauge|Histogram|Summary|Info)(MetricFamily)?$")
LABELS = {"title", "placeholder", "aria-label", "alt"}
SUBJECT = re.compile(r"^[a-z0-9_/., -]{2,24}: [A-Za-z].+$")
NOT_IMPERATIVE = re.compile(r"^\w+(?:ed|ing|[^s]s)$", re.IGNORECASE)
IMPERATIVE = {"address", "bring", "embed", "feed", "focus", "need", "process", "seed", "speed"}

Text = tuple[
    int, str, bool
]  # line, text, and whether it is a docstring or the like, with an opening


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the texts of a file that a reader meets; none of a kind of file that has none."""
    match path.suffix:
        case ".py":
            yield from _of_python(ast.parse(path.read_text()))
        case ".md":
            yield from _of_markdown(path.read_text())
        case ".html":
            yield from _of_html(path.read_text())
        case ".js":
            yield from _of_javascript(path.read_text())


def _of_python(tree: ast.AST) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield getattr(node, "lineno", 1), text, True
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            if text := _string(node.value):
                yield node.value.lineno, text, True
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for each in node.exc.args:
                if text := _string(each):
                    yield each.lineno, text, False
        elif isinstance(node, ast.Call) and node.args:
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Text]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in LOGS:
        if text := _string(node.args[0]):
            yield node.lineno, text, False
    elif METRIC.match(name) and len(node.args) > 1 and (text := _string(node.args[1])):
        yield node.lineno, text, False


def _string(node: ast.AST) -> str:
    """Return the literal text of an expression, `{}` for what is filled in; "" of any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_string(part) or "{}" for part in node.values)
    return ""


def _of_markdown(source: str) -> Iterator[Text]:
    fenced, block, begins = False, list[str](), 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        stripped = re.sub(r"`[^`]*`", "`", line).strip()
        new = not stripped or stripped[0] in "#|-*" or fenced
        if new and block:
            yield begins, " ".join(block), False
            block = []
        if stripped and not fenced:
            begins = begins if block else number
            block.append(stripped)


class _Labels(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Text] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in ("script", "style")
        for name, value in attrs:
            if name in LABELS and value:
                self.found.append((self.getpos()[0], value, False))

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._skipped:
            self.found.append((self.getpos()[0], " ".join(data.split()), False))


def _of_html(source: str) -> Iterator[Text]:
    parser = _Labels()
    parser.feed(source)
    yield from parser.found


def _of_javascript(source: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), 1):
        if not line.lstrip().startswith(("//", "*", "/*")):
            for _, text in re.findall(r"(['\"`])((?:\\.|(?!\1).)*)\1", line):
                if text.count(" ") > 1:
                    yield number, text, False


def broken(text: str, *, opens: bool = True) -> list[str]:
    """Return the names of the rules that a text breaks. `opens`: its opening is checked as well."""
    found = ["opens without subject and verb"] if opens and OPENING.match(text) else []
    return found + [name for name, rule in _COMPILED.items() if rule.search(text)]


def files_of_checkout() -> list[Path]:
    """Return the files of the checkout that are under git, or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603
    kinds = {".py", ".md", ".html", ".js"}
    paths = (ROOT / line for line in done.stdout.splitlines() if Path(line).suffix in kinds)
    return sorted(path for path in paths if path.is_file())


def folder_of(path: Path) -> str:
    """Return the folder of a file, from the checkout's root: the key of its budget."""
    return str(path.resolve().relative_to(ROOT).parent)


def count_by_folder(paths: Iterable[Path]) -> dict[str, Counter[str]]:
    """Return how many texts break a rule of prose, and how many docstrings one of ruff's."""
    found: dict[str, Counter[str]] = {}
    for path in paths:
        wrong = sum(bool(broken(text, opens=opens)) for _, text, opens in texts_of(path))
        if wrong:
            found.setdefault(folder_of(path), Counter())["prose"] += wrong
    for name in _by_ruff():
        found.setdefault(folder_of(Path(name)), Counter())["docstrings"] += 1
    return found


def _by_ruff() -> list[str]:
    command = [sys.executable, "-m", "ruff", "check", "--select", ",".join(RUFF), "--exit-zero"]
    done = subprocess.run(  # noqa: S603
        [*command, "--output-format", "json", "."], cwd=ROOT, capture_output=True, check=True
    )
    return [each["filename"] for each in json.loads(done.stdout)]


def over_budget(
    found: Mapping[str, Mapping[str, int]], budgets: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return a line for each folder with more such texts than its budget allows."""
    return [
        f"{folder}: {count} {kind}, {budgets.get(folder, {}).get(kind, 0)} allowed"
        for folder, counts in sorted(found.items())
        for kind, count in counts.items()
        if count > budgets.get(folder, {}).get(kind, 0)
    ]


def shrunk(
    found: Mapping[str, Mapping[str, int]], budgets: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the budgets lowered to what is there; none is raised, none added."""
    lowered = {
        folder: {
            kind: min(count, found.get(folder, {}).get(kind, 0)) for kind, count in old.items()
        }
        for folder, old in sorted(budgets.items())
    }
    left = {
        folder: {kind: count for kind, count in new.items() if count}
        for folder, new in lowered.items()
    }
    return {folder: new for folder, new in left.items() if new}


def wrong_subjects(subjects: Iterable[str]) -> list[str]:
    """Return a line for each commit subject that is not `area: imperative` within 72 characters."""
    wrong = []
    for subject in subjects:
        verb = subject.partition(": ")[2].split(" ")[0]
        if len(subject) > SUBJECT_LENGTH:
            wrong.append(f"{len(subject)} characters, at most {SUBJECT_LENGTH}: {subject}")
        elif not SUBJECT.match(subject):
            wrong.append(f"not 'area: imperative': {subject}")
        elif NOT_IMPERATIVE.match(verb) and verb.lower() not in IMPERATIVE:
            wrong.append(f"'{verb}' is not an imperative: {subject}")
    return wrong


def _subjects() -> list[str]:
    command = ["git", "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    return done.stdout.splitlines() if done.returncode == 0 else []  # a shallow clone, a tarball


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE_OR_DIR")
    parser.add_argument("--shrink", action="store_true", help="lower the budgets to what is there")
    parser.add_argument("--subjects", action="store_true", help="check subjects of commits")
    options = parser.parse_args()
    if options.subjects:
        return _report(wrong_subjects(_subjects()), "Reword the subject: git commit --amend.")
    if options.paths:
        return _listed(options.paths)
    budgets = json.loads(BUDGETS.read_text())
    found = count_by_folder(files_of_checkout())
    if options.shrink:
        BUDGETS.write_text(json.dumps(shrunk(found, budgets), indent=1) + "\n")
        return 0
    return _report(
        over_budget(found, budgets),
        "Reword what you added: python -m scripts.prose_lint FOLDER lists the texts, "
        f"ruff check --select {','.join(RUFF)} FOLDER the docstrings.",
    )


def _report(wrong: list[str], remedy: str) -> int:
    if wrong:
        print("\n".join([*wrong, remedy]))
    return 1 if wrong else 0


def _listed(roots: Iterable[Path]) -> int:
    wrong = 0
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            for line, text, opens in texts_of(path):
                if names := broken(text, opens=opens):
                    wrong += 1
                    print(f"{path}:{line}: {text.splitlines()[0][:100]}  <- {', '.join(names)}")
    print(f"{wrong} texts break a rule")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
