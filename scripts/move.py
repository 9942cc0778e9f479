"""Move modules to another layout: `python -m scripts.move TABLE`, from the top of a clean checkout.

TABLE has a line `old.module = new.module` for each module or package that moves; the longest prefix
counts. A line of paths (`tests/e2e/test_pool.py = tests/e2e/cluster/test_pool.py`) moves one file
of tests. Files are moved by git, tests of a module with it (`tests/unit/`). Imports are rewritten
by their syntax trees. In other text, names of modules and paths of files change where they name one
that moved. What depends on how deep a file lies (`Path(__file__).parents[2]`) is adjusted. Nothing
else changes: what a name alone cannot tell (`kairos.events` is a topic as well) is left, and
printed, so that it is decided by hand.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path

PACKAGE = "kairos"
TESTS = "tests/unit"
# Doors for users: programs import these names, so they stay where they are.
DOORS = ("kairos.agent", "kairos.flow")
HISTORY = re.compile(r"^(CHANGELOG\.md|docs/quality/.*\.jsonl|experiments/results/|scripts/move)")
TEXT = (
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".json",
    ".sh",
    ".c",
    ".js",
    ".html",
    ".txt",
    ".cfg",
)
_IMPORTED = re.compile(rf"\bfrom ({PACKAGE}(?:\.\w+)*) import (\w+)\b(?!,| as)")
_DOTTED = re.compile(rf"\b(?:{PACKAGE}|tests)(?:\.[A-Za-z_]\w*)+")
_PATH = re.compile(
    r"(?<![\w./-])(?:[\w-]+/)+(?:[\w-]+(?:\.(?:py|c|toml|html|js|css|json|svg)\b)?)?"
)


def main(table: str) -> int:
    """Move, rewrite, and print what was left to decide. Returns 1 where something was."""
    move = Move(_rows(Path(table).read_text()), _tracked())
    if both := [new for new, times in Counter(move.files.values()).items() if times > 1]:
        raise SystemExit(f"two files would be {', '.join(sorted(both))}: add rows to the table")
    for old, new in move.files.items():
        if old != new:
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            _git("mv", old, new)
    left = [line for path in _tracked() for line in move.rewrite(Path(path))]
    print("\n".join(left))
    return bool(left)


class Move:
    """Where each module and each file is after the move.

    `modules`, `files`: old name to new, of all that there are; equal where nothing moves.
    """

    def __init__(self, rows: dict[str, str], tracked: list[str]) -> None:
        self._rows = rows
        sources = [path for path in tracked if path.startswith(f"{PACKAGE}/")]
        self.modules = {
            old: self._moved(old) for old in map(_module_of, sources) if old is not None
        }
        self.files = {path: self._file(path) for path in sources}
        tests = [path for path in tracked if path.startswith(f"{TESTS}/")]
        self.files |= {path: self._test(path) for path in tests}
        self.files |= {path: rows[path] for path in tracked if path in rows}
        for old, new in self.files.items():
            if old.startswith("tests/") and old.endswith(".py"):
                self.modules[_dotted(old)] = _dotted(new)
        self._old_of = {new: old for old, new in self.files.items()}
        self._folders = self._packages()

    def _moved(self, name: str) -> str:
        prefix = name
        while prefix not in self._rows:
            if "." not in prefix:
                return name
            prefix = prefix.rpartition(".")[0]
        return self._rows[prefix] + name[len(prefix) :]

    def _packages(self) -> dict[str, str]:
        """Folders, old to new: of packages, and of their tests."""
        old = {str(Path(path).parent) for path in self.files if path.startswith(f"{PACKAGE}/")}
        moved = {each: self._moved(each.replace("/", ".")).replace(".", "/") for each in old}
        inside = len(PACKAGE) + 1
        tests = {f"{TESTS}/{o[inside:]}": f"{TESTS}/{n[inside:]}" for o, n in moved.items()}
        return {**tests, **moved}

    def _file(self, path: str) -> str:
        old = Path(path)
        if old.suffix == ".py" and old.name != "__init__.py":
            return self._moved(_dotted(path)).replace(".", "/") + ".py"
        if old.suffix == ".c" or old.suffix == ".toml":  # beside the module of its name
            beside = old.with_suffix("").as_posix().replace("/", ".")
            if beside in self._rows:
                return self._rows[beside].replace(".", "/") + old.suffix
        folder = self._moved(old.parent.as_posix().replace("/", "."))
        return f"{folder.replace('.', '/')}/{old.name}"

    def _test(self, path: str) -> str:
        """The folder of a test is that of the module that it is named after, or its folder's."""
        old = Path(path)
        folder = old.parent.relative_to(TESTS).as_posix()
        package = PACKAGE if folder == "." else f"{PACKAGE}.{folder.replace('/', '.')}"
        module = f"{package}.{old.stem.removeprefix('test_')}"
        by_hand = f"{TESTS}/{folder}/{old.name}".replace("/./", "/")
        if by_hand in self._rows:
            return self._rows[by_hand]
        if module in self.modules:
            new = self.modules[module].rpartition(".")[0]
        elif folder != "." and package in self.modules:
            new = self._moved(package)
        else:
            return path
        return "/".join((TESTS, *new.split(".")[1:], old.name))

    def rewrite(self, path: Path) -> list[str]:
        """Rewrite one file in place. Returns what a name alone could not decide."""
        name = path.as_posix()
        if HISTORY.match(name) or not (path.suffix in TEXT or path.name in ("Makefile", "run")):
            return []
        text = path.read_text()
        changed = text
        if path.suffix == ".py":
            changed = self._imports(changed, inside=name.startswith(f"{PACKAGE}/"))
            changed = _in_strings_and_comments(changed, self._names_and_paths)
            changed = _deeper(changed, self._old_of.get(name, name), name)
        else:
            changed = self._names_and_paths(changed)
        if changed != text:
            path.write_text(changed)
        return [
            f"{name}: {each}"
            for each in sorted(set(_DOTTED.findall(changed)))
            if self._is_old(each)
        ]

    def _is_old(self, name: str) -> bool:
        """Whether text names a module that is not there any more, or another thing of its name."""
        old = ".".join(name.split(".")[:2])
        return self.modules.get(old, old) != old and old not in DOORS

    def _imports(self, text: str, *, inside: bool) -> str:
        """Rewrite import statements, of one statement several where its names part."""
        lines = text.splitlines(keepends=True)
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        for node in sorted(found, key=lambda each: -each.lineno):
            new = self._statement(node, inside=inside)
            if new is None:
                continue
            assert node.end_lineno is not None
            indent = lines[node.lineno - 1][: node.col_offset]
            last = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
            joined = ("\n" + indent).join(new)
            lines[node.lineno - 1 : node.end_lineno] = [indent + joined + last]
        return "".join(lines)

    def _statement(self, node: ast.Import | ast.ImportFrom, *, inside: bool) -> list[str] | None:
        if isinstance(node, ast.Import):
            names = [(each.name, self.modules.get(each.name, each.name)) for each in node.names]
            if all(old == new for old, new in names):
                return None
            return [f"import {new}" for _, new in names]
        base = node.module or ""
        if node.level or base.split(".")[0] not in (PACKAGE, "tests"):
            return None
        if (
            base in DOORS
            and not inside
            and not any(f"{base}.{each.name}" in self.modules for each in node.names)
        ):
            return None
        parted: dict[str, list[str]] = {}
        for each in node.names:
            whole = f"{base}.{each.name}"
            said = each.asname or each.name
            if whole in self.modules and (inside or whole not in DOORS):
                new, _, last = self.modules[whole].rpartition(".")
            else:
                new, last = self.modules.get(base, base), each.name
            parted.setdefault(new, []).append(last if last == said else f"{last} as {said}")
        if list(parted) == [base] and parted[base] == [
            each.name if not each.asname else f"{each.name} as {each.asname}" for each in node.names
        ]:
            return None
        return [f"from {new} import {_listed(names)}" for new, names in parted.items()]

    def _names_and_paths(self, text: str) -> str:
        text = _IMPORTED.sub(self._imported_in_text, text)
        return _PATH.sub(self._path, _DOTTED.sub(self._name, text))

    def _imported_in_text(self, found: re.Match[str]) -> str:
        """Return an import of one name, in a program that is text."""
        whole = f"{found[1]}.{found[2]}"
        if whole not in self.modules or whole in DOORS:
            return found.group()
        base, _, last = self.modules[whole].rpartition(".")
        return f"from {base} import {last}" + ("" if last == found[2] else f" as {found[2]}")

    def _name(self, found: re.Match[str]) -> str:
        """Return the new name of a module, or of what is in one, that text mentions.

        A name of two parts changes only after words that import: topics and attributes of spans
        have such names, too.
        """
        whole = found.group()
        before = found.string[max(0, found.start() - 12) : found.start()]
        of_import = re.search(r"(from|import|-m|python3?)\s+$", before)
        parts = whole.split(".")
        for length in range(len(parts), 1, -1):
            old = ".".join(parts[:length])
            if old not in self.modules:
                continue
            if old in DOORS:
                return whole
            rest = parts[length:]
            if length == 2 and not of_import and not (rest and re.match("[A-Z_]", rest[0])):
                return whole
            return ".".join((self.modules[old], *rest))
        return whole

    def _path(self, found: re.Match[str]) -> str:
        whole = found.group()
        bare = whole.rstrip("/")
        for before in ("", f"{PACKAGE}/", "tests/"):  # some texts leave the first folder out
            new = self.files.get(before + bare)
            if new is None and (not before or "/" in bare):  # "flow/" is a prefix of models
                new = self._folders.get(before + bare)
            if new is not None:
                return new.removeprefix(before) + whole[len(bare) :]
        return whole


def _rows(text: str) -> dict[str, str]:
    rows = {}
    for line in text.splitlines():
        row = line.partition("#")[0].strip()
        if row:
            old, new = (each.strip() for each in row.split("="))
            rows[old] = new if "/" in new else f"{PACKAGE}.{new}"
    return rows


def _module_of(path: str) -> str | None:
    return _dotted(path) if path.endswith(".py") else None


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _in_strings_and_comments(text: str, change: Callable[[str], str]) -> str:
    """Change strings and comments, and no code."""
    kinds = (tokenize.STRING, tokenize.COMMENT)
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    parts, at = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in kinds:
            continue
        begin = offsets[token.start[0] - 1] + token.start[1]
        end = offsets[token.end[0] - 1] + token.end[1]
        parts += [text[at:begin], change(text[begin:end])]
        at = end
    return "".join([*parts, text[at:]])


def _deeper(text: str, old: str, new: str) -> str:
    """Count parents of a file again, where it lies deeper or higher than before."""
    more = new.count("/") - old.count("/")
    if not more:
        return text
    return re.sub(
        r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)\]",
        lambda found: f"{found[1]}{int(found[2]) + more}]",
        text,
    )


def _tracked() -> list[str]:
    return _git("ls-files").splitlines()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)  # noqa: S603, S607
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
