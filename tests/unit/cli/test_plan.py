"""`kairos plan`, which asks no engine."""

import json

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.errors import SetupError

FLOW = """
flow: reports
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  again: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  never: {kind: llm, prompt: "{{ row.text }}?"}
  answer: {kind: llm, prompt: "{{ summary }} {{ again }} {{ row.question }}", max_tokens: 10}
outputs: {answer: answer}
"""
ROWS = [{"text": f"report {n // 5}", "question": f"question {n}"} for n in range(10)]


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "f.yaml").write_text(FLOW)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def planned(*options):
        options = [option.replace("ROWS", str(tmp_path / "rows.jsonl")) for option in options]
        result = CliRunner().invoke(app, ["plan", str(tmp_path / "f.yaml"), *options])
        if result.exception is not None:
            raise result.exception
        return result.output

    return planned


def test_it_says_what_is_left_out_and_merged_and_how_many_calls_are_left(planned):
    said = planned("--inputs", "ROWS")

    assert "left out, since no output needs it: never" in said
    assert "merged: again is computed as summary" in said
    assert "columns needed: question, text; columns written: answer" in said
    assert "summary: llm; after row; equal calls made once" in said
    assert "2 calls, 8 merged" in said
    assert "for 10 rows: 12 calls" in said


def test_passes_can_be_switched_off(planned):
    assert "passes: prune, cached" in planned("--without", "cse")
    assert "for 10 rows: 40 calls" in planned(
        "--inputs", "ROWS", "--without", "cse", "--without", "prune"
    )
    with pytest.raises(SetupError, match="--without magic: there are prune, cse, cached"):
        planned("--without", "magic")


def test_a_program_gets_json(planned):
    told = json.loads(planned("--json", "--inputs", "ROWS"))

    assert told["pruned"] == ["never"]
    assert told["prediction"]["by_operator"]["summary"]["calls"] == 2


def test_a_table_without_a_column_that_is_needed_is_refused(planned, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "t", "questions": []}\n')

    with pytest.raises(
        SetupError, match="no column 'question', which the flow needs; it has 'text'"
    ):
        planned("--inputs", "ROWS")
