"""Which rows of a table are handed over, and which have ended before."""

import pytest

from kairos.workflows.execute.facts import RowRead
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.tables import open_table


@pytest.fixture
def journal(tmp_path):
    made = RunJournal(tmp_path / "journal.sqlite", print)
    yield made
    made.close()


async def handed_over(journal, rows):
    """End rows by a session of the run."""
    told = []
    intake = TableIntake(open_table(rows), journal, b"plan", told.append)
    intake.request_rows(0, len(rows) + 1)
    intake.request_rows(1, 1)
    await intake.run()
    given = [each.row for each in told if isinstance(each, RowRead)]
    for row in given:
        journal.end_row(0, row, "written", intake.digest_of(0, row), {})
    journal.settle()
    return given


async def test_a_row_that_has_ended_is_the_same_whatever_the_order_of_its_columns(journal):
    rows = [{"text": f"text {n}", "more": {"a": n, "b": None}} for n in range(3)]
    assert await handed_over(journal, rows) == [0, 1, 2]

    turned = [{"more": {"b": None, "a": n}, "text": f"text {n}"} for n in range(3)]
    turned[1]["text"] = "edited"
    assert await handed_over(journal, turned) == [1]
