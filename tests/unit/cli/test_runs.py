"""`kairos runs`: which it does not go on with."""

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.core import SetupError
from kairos.workflows import RunRecord
from tests.support.workflows.runs import RunStore

PLACES = {"flow_path": "/nowhere/f.yaml", "inputs": "/nowhere/rows.jsonl", "out": "/nowhere/o"}


@pytest.mark.parametrize("missing", [{"flow_path": None}, {"inputs": None}, {"out": ""}], ids=str)
def test_a_run_of_a_program_is_not_resumed_from_outside_of_it(tmp_path, missing):
    fields = PLACES | missing
    RunStore(tmp_path).create(RunRecord(id="r-1", flow="r", created_at=1, changed_at=1, **fields))

    resumed = CliRunner().invoke(app, ["runs", "resume", "r-1", "--dir", str(tmp_path)])

    assert isinstance(resumed.exception, SetupError)
    assert str(resumed.exception) == "r-1 belongs to a program, which alone can go on with it"
