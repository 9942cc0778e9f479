import json
import subprocess
from pathlib import Path

import pytest

from quality import mutants
from quality.operators import statements

QUALITY = Path(mutants.__file__).parent

# Of its three statements a test notices what is done to the first; nothing can notice what is done
# to the second; no test looks at the third.
MODULE = '''\
"""A module."""
import logging

_log = logging.getLogger(__name__)


def add(one: int, other: int = 0) -> int:
    """Add 1 and 1."""
    _log.info("adds %s", one + other)
    return one + other


def forget(names: dict[int, int]) -> None:
    if 5 in names:
        del names[5]
    names.pop(5, None)


def never(x: bool) -> bool:
    return not x
'''
TESTS = """\
from kairos.toy import add, forget

def test_two_numbers_are_added():
    assert add(2, 1) == 3

def test_five_is_forgotten():
    names = {5: 1}
    forget(names)
    assert not names
"""
EQUIVALENT = """\
[[mutant]]
file = "kairos/toy.py"
where = "forget"
source = "del names[5]"
what = "del names[5] -> pass"
verdict = "equivalent"
why = "the line after it does the same"
"""


@pytest.fixture
def checkout(tmp_path):
    files = {
        "kairos/__init__.py": "",
        "kairos/toy.py": MODULE,
        "tests/test_toy.py": TESTS,
        "docs/quality/mutants.toml": EQUIVALENT,
        **{f"quality/{each.name}": each.read_text() for each in QUALITY.glob("*.py")},
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)
    return tmp_path


def test_faults_are_judged_by_the_tests_that_reach_them(checkout, capsys):
    out = checkout / "out.jsonl"
    code = mutants.main(("--count", "99", "--out", str(out)), checkout)
    rows = {row["source"]: row for row in map(json.loads, out.read_text().splitlines())}

    added = rows["return one + other"]
    assert added["outcome"] == "killed"
    assert added["by"] == "tests/test_toy.py::test_two_numbers_are_added"
    assert rows["names.pop(5, None)"]["reaching"] == 1
    assert rows["return not x"]["outcome"] == "not reached"
    # Only the fault without a verdict is for somebody to look at.
    printed = capsys.readouterr().out
    assert code == 1
    assert 'source = "return not x"' in printed
    assert (checkout / "kairos" / "toy.py").read_text() == MODULE


def test_a_fault_is_a_program():
    text = Path(mutants.__file__).read_bytes()
    found = [m for each in statements("a.py", text) for m in each.mutants]
    assert len(found) > 50
    for each in found:
        compile(each.applied(text), "a.py", "exec")
