"""Rules of the house that a reader relies on: CONTRIBUTING.md, "How code looks here"."""

import ast
import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from scripts.house import House, imported

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "kairos").rglob("*.py"))
LINES, OF_A_FUNCTION = 800, 80


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_one_subject_and_a_function_one_screen(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < OF_A_FUNCTION, node.name


def test_no_two_classes_have_the_same_name():
    named = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in named.items() if times > 1} == set()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_tests_lie_where_their_modules_do():
    of_kairos = {path.name for path in (ROOT / "kairos").iterdir() if path.is_dir()}
    others = {"agents", "bench", "experiments", "quality", "scripts", "support"}
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= of_kairos | others


HOUSE = House(ROOT / "kairos")
DOORS = HOUSE.door_names()


def test_no_import_reaches_past_another_folders_door():
    assert +HOUSE.past_doors() == Counter()


@pytest.mark.parametrize("room", DOORS)
def test_a_door_exports_what_another_folder_uses_and_nothing_else(room):
    door = importlib.import_module(f"kairos.{room}")
    used = {
        name
        for module, tree in HOUSE.trees.items()
        if module.split(".")[1:2] != [room]
        for base, name in imported(tree, module, HOUSE.paths[module].name == "__init__.py")
        if base == f"kairos.{room}"
    }
    assert set(door.__all__) == used
    assert [each for each in door.__all__ if isinstance(getattr(door, each), ModuleType)] == []


def test_tests_of_other_rooms_seldom_reach_past_a_door():
    assert HOUSE.reached_by_tests(ROOT / "tests") <= 100
