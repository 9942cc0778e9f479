"""A plugin for pytest that runs the tests named in `$KAIROS_ORDER`, in that order.

The first test that fails is written to `$KAIROS_FAILED`.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    yield  # whatever else sorts them
    names = Path(os.environ["KAIROS_ORDER"]).read_text().splitlines()
    place = {name: number for number, name in enumerate(names)}
    left_out = [item for item in items if item.nodeid not in place]
    items[:] = sorted(
        (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
    )
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    failed = Path(os.environ["KAIROS_FAILED"])
    if report.failed and not failed.exists():
        failed.write_text(report.nodeid)
