"""Collect ten thousand tests at little cost.

The garbage collector is off while pytest collects: looking through modules and items again and
again took half the time. Afterwards it passes over all that was collected, so tests that ask it
what is left do not pay for the others.

In a fresh checkout pytest compiles each file of tests, which takes longer than importing it, and
processes that collect at once would all compile the same file. Each process therefore begins at
another folder, and finds what the others have compiled by then.
"""

import gc
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def pytest_configure(config):
    worker = getattr(config, "workerinput", None)
    if worker and [Path(each).resolve() for each in config.args] == [TESTS]:
        folders = _folders(TESTS)
        begins = len(folders) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args = [str(each) for each in folders[begins:] + folders[:begins]]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Bring the files into one order, wherever collecting began."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0])


def _folders(of):
    """Return the folders that have tests, and of large ones the folders within."""
    found = []
    for each in sorted(of.iterdir()):
        if each.is_dir() and next(each.rglob("test_*.py"), None):
            is_large = each.name in {"unit", "live"} and not list(each.glob("conftest.py"))
            found += _folders(each) if is_large else [each]
        elif each.match("test_*.py"):
            found.append(each)
    return found
