"""ARCHITECTURE.md says where things are, and says it of everything."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| `(kairos/[a-z_/]*)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
FOLDERS = {f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / "kairos").rglob("*.py")}


def test_every_folder_has_its_row():
    assert len(ROWS) == len(set(ROWS))
    assert set(ROWS) >= FOLDERS
    assert [each for each in ROWS if not (ROOT / each).is_dir()] == []


def test_paths_that_the_text_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|c|toml|svg|md))`", text)):
        assert (ROOT / name).exists() or (ROOT / "kairos" / name).exists(), name
