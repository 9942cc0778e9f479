"""Measure how a package is cut: `python -m scripts.house [DIR] [TESTS]`.

Counted against limits: imports that reach past another folder's door, functions above 80 lines,
modules above 800, file names used more than three times, folders and loose modules at the top, the
size of ARCHITECTURE.md. A door is the `__init__` of a folder at the package's top: `kairos.core` is
a door, `kairos.core.scheduler` is behind it, and the door's names are in its stub,
`kairos/core/__init__.pyi`. Tests in a folder named after the room
(`tests/unit/core/`) may look inside that room. Printed for information: modules, lines, public
names, and modules with one importer (exports of their own folder's `__init__` are left out).
Relative imports count as absolute ones do.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

EVERYWHERE = {"__init__", "settings", "errors", "main"}
LINES, OF_A_FUNCTION, OF_A_NAME = 800, 80, 3

Import = tuple[str, str | None]  # a module, and a name in it


class House:
    """A package, by module: its path and its syntax tree."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root.name
        self.paths = {_dotted(path, root.parent): path for path in sorted(root.rglob("*.py"))}
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.paths.items()}
        self.modules = {
            name: path for name, path in self.paths.items() if path.name != "__init__.py"
        }

    def past_doors(self) -> Counter[str]:
        """Count imports past another folder's door, by the importing folder."""
        past: Counter[str] = Counter()
        for name, tree in self.trees.items():
            folder = name.split(".")[1] if "." in name else self.package
            for each in imported(tree, name, self.paths[name].name == "__init__.py"):
                past[folder] += self._is_behind(each, name)
        return past

    def reached_by_tests(self, tests: Path) -> int:
        """Count imports of tests past a door, but for tests in a folder of the room's name."""
        reached = 0
        for path in sorted(tests.rglob("*.py")) if tests.exists() else []:
            try:
                tree = ast.parse(path.read_text())
            except SyntaxError:  # some tests are about files that are none
                continue
            reached += sum(
                self._is_behind(each, "tests.x") and each[0].split(".")[1] not in path.parts
                for each in imported(tree, "tests.x", False)
            )
        return reached

    def door_names(self) -> dict[str, int]:
        """Count the names that each folder's door exports."""
        return {
            stub.parent.name: sum(
                len(node.names)
                for node in ast.parse(stub.read_text()).body
                if isinstance(node, ast.ImportFrom)
            )
            for stub in sorted(self.root.glob("*/__init__.pyi"))
        }

    def importers(self) -> dict[str, set[str]]:
        """Return who imports each module."""
        found: dict[str, set[str]] = {name: set() for name in self.paths}
        for name, tree in self.trees.items():
            for each in imported(tree, name, self.paths[name].name == "__init__.py"):
                if (target := self._target(each)) in found:
                    found[target].add(name)
        return found

    def long_functions(self) -> list[str]:
        """Return functions above 80 lines."""
        return [
            f"{name}.{node.name}"
            for name, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno >= OF_A_FUNCTION
        ]

    def public_names(self) -> int:
        """Count classes and functions at the top of modules whose names have no underscore."""
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        nodes = (node for tree in self.trees.values() for node in tree.body)
        return sum(isinstance(node, kinds) and not node.name.startswith("_") for node in nodes)

    def _target(self, each: Import) -> str:
        base, name = each
        return f"{base}.{name}" if name and f"{base}.{name}" in self.paths else base

    def _is_behind(self, each: Import, importer: str) -> bool:
        parts = self._target(each).split(".")
        if parts[0] != self.package or len(parts) < 3:
            return False
        return importer.split(".")[:2] != parts[:2]


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """Yield what each import statement of a module names, absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                yield base, alias.name


def alone(modules: Mapping[str, Path], importers: Mapping[str, set[str]]) -> tuple[int, int]:
    """Return how many modules have one importer, and how many of these have it in their folder."""
    one = [(name, next(iter(importers[name]))) for name in modules if len(importers[name]) == 1]
    others = [(name, by) for name, by in one if by != _folder(name)]
    return len(others), sum(_folder(by) == _folder(name) for name, by in others)


def main(arguments: list[str]) -> None:
    """Print the measures."""
    root = Path(arguments[0] if arguments else "kairos").resolve()
    house = House(root)
    tests = Path(arguments[1]).resolve() if len(arguments) > 1 else root.parent / "tests"
    past = house.past_doors()
    loose = [path for path in root.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    folders = [path for path in root.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    names = Counter(name.rpartition(".")[2] for name in house.modules)
    often = sorted(n for n, count in names.items() if count > OF_A_NAME and n not in EVERYWHERE)
    sizes = sorted(len(path.read_text().splitlines()) for path in house.modules.values())
    lines = sum(len(path.read_text().splitlines()) for path in house.paths.values())
    architecture = root.parent / "ARCHITECTURE.md"
    words = architecture.read_text() if architecture.exists() else ""
    one, at_home = alone(house.modules, house.importers())
    print(
        f"past another folder's door: product {past.total()}, "
        f"tests {house.reached_by_tests(tests)}\n"
        f"folders at the top {len(folders)}, loose modules {len(loose)}\n"
        f"functions above {OF_A_FUNCTION} lines {len(house.long_functions())}, "
        f"modules above {LINES} lines {sum(size > LINES for size in sizes)}, "
        f"names of files used more than three times {len(often)} {' '.join(often)}\n"
        f"ARCHITECTURE.md {len(words.splitlines())} lines, {len(words.split())} words\n"
        f"for information: modules {len(house.modules)}, lines {lines}, "
        f"median {sizes[len(sizes) // 2]}, public names {house.public_names()}, "
        f"with one importer {one}, of them in its own folder {at_home}\n"
        "names at doors: "
        + ", ".join(f"{name} {count}" for name, count in house.door_names().items())
    )


def _dotted(path: Path, above: Path) -> str:
    parts = path.relative_to(above).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(name: str) -> str:
    return name.rpartition(".")[0]


if __name__ == "__main__":
    main(sys.argv[1:])
