from io import StringIO

from rich.console import Console

from kairos.workflows import RunRecord
from kairos.workflows.run.run_shown import calls_text, show_run
from kairos.workflows.run.run_store import RunStore


def test_calls_of_processors_and_those_made_ahead_are_told_apart_where_there_were_any():
    assert calls_text({"calls": 1_200}) == "1,200 calls"
    assert calls_text({"calls": 3, "processed": 1_000}) == "3 calls and 1,000 of processors"
    assert calls_text({"calls": 3, "touched": 2}) == "3 calls and 2 prefills of static prefixes"


def test_a_run_whose_journal_is_on_kafka_says_where(tmp_path):
    record = RunRecord(
        id="chain-1", flow="chain", out="o", created_at=1, changed_at=1, bus="kafka://h:1"
    )
    said = StringIO()
    show_run(Console(file=said, width=1000), RunStore(tmp_path).create(record), record)
    assert f"kafka://h:1 and {tmp_path}/runs/chain-1" in said.getvalue()
