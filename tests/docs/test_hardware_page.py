"""The page on hardware names the tests that show what it says of the paper."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (G\d+) \|.*\|([^|]+)\|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "research" / "hardware.md").read_text()


def test_the_rows_are_g1_to_g12_and_each_has_tests_named_after_it_where_the_page_says():
    rows = ROW.findall(PAGE)
    assert [name for name, _ in rows] == [f"G{number}" for number in range(1, 13)]
    for name, files in rows:
        for path in re.findall(r"`([^`]+)`", files):
            assert f"def test_{name.lower()}_" in (ROOT / path).read_text(), (name, path)
