"""ARCHITECTURE.md says where things are, and says it of everything."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = dict(
    re.findall(r"^\| `(kairos/[a-z/]*)` \| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
)
FOLDERS = sorted({path.parent for path in (ROOT / "kairos").rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_every_module_has_its_place_in_the_table(folder):
    there = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    told = ROWS[f"{folder.relative_to(ROOT)}/"]
    assert set(re.findall(r"\b[a-z_]+\.py\b", told)) == there


def test_paths_that_the_text_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|c|toml|svg|md))`", text)):
        assert (ROOT / name).exists() or (ROOT / "kairos" / name).exists(), name
