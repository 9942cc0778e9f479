"""The README's table of gains is what its commands print."""

from pathlib import Path

import pytest

from experiments.claim import View
from experiments.grids import KEPT
from experiments.headlines import HEADLINES, line
from experiments.rates import rates
from experiments.runs import Results

README = (Path(__file__).parents[3] / "README.md").read_text()


@pytest.fixture(scope="module")
def view():
    return View(rates(), Results(KEPT).rows, False)


@pytest.mark.parametrize("name", HEADLINES)
def test_a_row_of_the_readme_is_what_its_command_prints(view, name):
    printed = line(name, view)
    assert printed is not None
    assert printed in README.splitlines()
    assert f"`{name}`" in printed or name in printed


def test_every_row_of_the_readme_has_a_command_that_prints_it(view):
    table = README[README.index("| Setting |") :].split("\n\n")[0].splitlines()[2:]
    assert table == [line(name, view) for name in HEADLINES]


def test_a_row_whose_results_are_not_there_is_left_out():
    empty = View(rates(), {}, False)
    assert line("e21_recorded_agents", empty) is None
