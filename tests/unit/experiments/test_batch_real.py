"""A batch beside agents on real engines: what is run, what is kept, and what is made of it."""

from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from experiments import batch_vllm, sections
from experiments.batch_vllm import LINES, NAME, lines, measure
from experiments.e46_batch_real import BESIDE, REPETITIONS, STUDY, Row, figures, section
from experiments.sections import read_rows
from kairos.batch_input import check_input

P99_S = {"nothing": 2.0, "batch": 3.0, "standard": 6.0}


def row(repetition, beside, commit="c"):
    return Row(
        commit=commit,
        date="2026-11-25",
        repetition=repetition,
        beside=beside,
        workflows=36,
        mean_s=P99_S[beside] / 2,
        p99_s=P99_S[beside],
        lines=0 if beside == "nothing" else 100,
        lasted_s=50.0,
    )


def rows(repetitions):
    return [row(n, beside) for n in range(1, repetitions + 1) for beside in BESIDE]


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Rows are in a directory of the test, and engines are none."""

    @asynccontextmanager
    async def engines(limits, tell, *, model):
        yield ["http://1", "http://2"]

    async def learnt_of(*_):
        return b"learnt"

    async def run(urls, learnt, submissions, beside):
        assert learnt == b"learnt"
        return {"mean": P99_S[beside] / 2, "p99": P99_S[beside]}, 100, 50.0

    for name, value in (("engines", engines), ("learnt_of", learnt_of), ("run", run)):
        monkeypatch.setattr(batch_vllm, name, value)
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    monkeypatch.setattr(batch_vllm, "commit", lambda: "c")
    return lambda: read_rows(NAME, STUDY, quick=False)


@pytest.mark.long
async def test_each_repetition_has_a_run_beside_each_and_rows_are_kept(kept):
    made = await measure(2, Console(quiet=True))

    assert made == kept()
    assert sorted((each.repetition, each.beside) for each in made) == sorted(
        (each.repetition, each.beside) for each in rows(2)
    )


async def test_what_was_broken_off_goes_on_at_the_same_commit_alone(kept, monkeypatch):
    first = await measure(1, Console(quiet=True))
    assert (await measure(2, Console(quiet=True)))[: len(first)] == first
    monkeypatch.setattr(batch_vllm, "commit", lambda: "d")
    assert {each.commit for each in await measure(1, Console(quiet=True))} == {"d"}


def test_the_lines_are_a_batch(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(lines())
    checked = check_input(path, "/v1/completions", 50_000)
    assert (checked.total, checked.errors) == (LINES, ())


def test_the_report_compares_with_nothing_and_with_ordinary_calls():
    said = section(rows(2))
    assert "It is 0.50 [0.50, 0.50]." in said
    assert "| a batch, of what is spare | 2 | 1.50 | 3.00 | 1.50 [1.50, 1.50] |" in said
    assert "| its lines as ordinary calls | 2 | 3.00 | 6.00 | 3.00 [3.00, 3.00] |" in said
    assert "commit c, 2026-11-25" in said


def test_of_one_repetition_there_is_no_interval():
    assert "It is 0.50." in section(rows(1))


def test_a_figure_stands_for_all_repetitions_or_is_not_there():
    assert figures(rows(REPETITIONS - 1)) == []
    [figure] = figures(rows(REPETITIONS))
    assert (figure.value, figure.target, figure.better) == (0.5, 0.75, "lower")
