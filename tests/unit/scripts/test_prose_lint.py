import json
from pathlib import Path

import pytest

from scripts import prose_lint
from scripts.prose_lint import broken, over_budget, shrunk, texts_of, wrong_subjects


@pytest.mark.parametrize(
    "text",
    [
        "Of one instance.",
        "Those that wait.",
        "What it has.",
        "Return so many calls as fit.",
        "Notify whoever waits.",
        "Return the calls, of which one runs.",
        "Return what is told of it.",
        "Return the calls of those who wait.",
        "Start it anew.",
        "A name that is none.",
        "Wait until the run is over.",
        "A heuristic. Ours.",
    ],
)
def test_a_text_that_breaks_a_rule_is_found(text):
    assert broken(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the bookings of one instance.",
        "Bookings of one instance.",
        "there is no policy 'luck'",
        "Return whether the queue is empty.",
    ],
)
def test_a_plain_text_is_left_alone(text):
    assert broken(text) == []


FILES = {
    "a.py": (
        (
            '"""Module."""\n'
            "class A:\n"
            '    """Class."""\n'
            "def f(option=Option(help='Help.')):\n"
            "    log.warning('Warning %s', f)\n"
            "    Gauge('name', 'Metric.')\n"
            "    raise Broken(f'Error {f} here')\n"
        ),
        {"Module.", "Class.", "Help.", "Warning %s", "Metric.", "Error {} here"},
    ),
    "a.md": (
        "# Title\n\nA paragraph\nof two lines.\n\n```sh\nnot this\n```\n- item\n",
        {"# Title", "A paragraph of two lines.", "- item"},
    ),
    "a.html": (
        '<p title="Hint">Some <b>text</b></p><script>not this one</script>',
        {"Hint", "Some", "text"},
    ),
    "a.js": ("// not this one\nsay('three words here', 'word')\n", {"three words here"}),
    "a.toml": ("text = 'not this one'\n", set()),
}


@pytest.mark.parametrize("name", FILES)
def test_the_texts_that_a_reader_meets_are_found(tmp_path, name):
    source, expected = FILES[name]
    path = Path(tmp_path / name)
    path.write_text(source)
    assert {text for _, text, _ in texts_of(path)} == expected


def test_a_folder_may_not_have_more_than_its_budget_and_a_new_one_none():
    found = {"old": {"prose": 3, "docstrings": 1}, "new": {"prose": 1}}
    budgets = {"old": {"prose": 2, "docstrings": 2}}
    assert over_budget(found, budgets) == ["new: 1 prose, 0 allowed", "old: 3 prose, 2 allowed"]


def test_budgets_only_shrink():
    found = {"a": {"prose": 1, "docstrings": 9}, "new": {"prose": 5}}
    budgets = {"a": {"prose": 2, "docstrings": 3}, "gone": {"prose": 4}}
    assert shrunk(found, budgets) == {"a": {"prose": 1, "docstrings": 3}}


@pytest.mark.parametrize(
    ("subject", "wrong"),
    [
        ("scheduler: bound how long a workflow waits", ""),
        ("docs, tests: process what readers reported", ""),
        ("Bound how long a workflow waits", "not 'area: imperative'"),
        ("scheduler: bounded how long a workflow waits", "not an imperative"),
        ("scheduler: adds a bound", "not an imperative"),
        ("scheduler: " + "b" * 70, "81 characters"),
    ],
)
def test_subjects_of_commits_are_an_area_and_an_imperative(subject, wrong):
    found = wrong_subjects([subject])
    assert bool(found) == bool(wrong)
    assert wrong in "".join(found)


def test_every_budget_is_of_a_folder_that_is_there():
    budgets = json.loads(prose_lint.BUDGETS.read_text())
    assert [folder for folder in budgets if not (prose_lint.ROOT / folder).is_dir()] == []
