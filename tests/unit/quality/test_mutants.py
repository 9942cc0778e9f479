import json
import subprocess
from pathlib import Path

import pytest

from quality import mutants
from quality.operators import statements
from quality.verdicts import Verdicts

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


def test_a_verdict_is_of_one_fault_and_has_a_reason(checkout):
    path = checkout / "docs" / "quality" / "mutants.toml"
    (deleted,) = (
        mutant
        for statement in statements("kairos/toy.py", MODULE.encode())
        for mutant in statement.mutants
        if mutant.source == "del names[5]" and mutant.text == "pass"
    )
    assert Verdicts(path).of(deleted) == "equivalent"
    assert Verdicts(path).of(deleted._replace(where="elsewhere")) == ""
    path.write_text(EQUIVALENT.replace("the line after it does the same", " "))
    with pytest.raises(ValueError, match="no reason"):
        Verdicts(path)


def test_a_draw_is_the_same_for_the_same_seed(checkout):
    assert mutants.draw(checkout, 7, 3) == mutants.draw(checkout, 7, 3)
    assert {tuple(mutants.draw(checkout, seed, 3)) for seed in range(9)} != {
        tuple(mutants.draw(checkout, 7, 3))
    }


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("def f(x):\n x -= 1", {"pass", "x += 1", "2", "0"}),
        ("def f(x):\n if x < 2: pass", {"(not (x < 2))", "(x <= 2)", "3", "1"}),
        ("async def f(x):\n await x.closed()", {"pass"}),
        ("def f(x):\n return x(y=x) and not x", {"return None", "(x(y=x) or not x)", "x()", "(x)"}),
        ("def f(x):\n for _ in x: break", {"pass", "continue"}),
        ("def f(x):\n raise KeyError", {"pass"}),
        (
            "def f(x: int = None) -> 'a + 1':\n 'text'\n assert x > 1\n _log.info('%s', x + 1)",
            set(),
        ),
        ("__all__ = ('f',)\n__slots__ = (1,)", set()),
        ("if TYPE_CHECKING:\n x = 1", set()),
        ("def f(x):\n y = x\n self.y = y", {"pass"}),
    ],
)
def test_a_statement_has_the_faults_of_its_kind(source, faults):
    found = {m.text for each in statements("a.py", source.encode()) for m in each.mutants}
    assert found == faults


def test_a_fault_is_a_program():
    text = Path(mutants.__file__).read_bytes()
    found = [m for each in statements("a.py", text) for m in each.mutants]
    assert len(found) > 50
    for each in found:
        compile(each.applied(text), "a.py", "exec")
