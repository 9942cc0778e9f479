"""Modules on real models: who goes first, what is kept of the pairs, and what is made of them."""

from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from examples.rag_demo import Answered, Servers
from experiments import modules_real, sections
from experiments.e40_modules_real import PAIRS, STUDY, Row, figures, section
from experiments.modules_real import NAME, asking_archive, measure, questions, run_pair
from experiments.sections import read_rows
from kairos.execution.timeline import Activity
from kairos.plan.operators import Search
from kairos.plan.pipeline import compile_plan

CONSOLE = Console(quiet=True)


@asynccontextmanager
async def fresh():
    yield Servers("http://engine", "http://embedder")


@pytest.fixture
def ran(monkeypatch):
    """What was run: whether it was the chain, and where its collections are."""
    ran = []

    async def run_row(flow, row, servers, *, as_chain, console):
        ran.append((as_chain, servers.collections))
        took_us = 2_000_000 if as_chain else 1_500_000
        activity = Activity(0, 0, "a", "a", "llm", 5, 5 + took_us)
        return Answered({"answer": row["question"]}, [activity])

    monkeypatch.setattr(modules_real, "run_row", run_row)
    return ran


@pytest.fixture
def kept(monkeypatch, tmp_path, ran):
    """Pairs of two questions, without engines, whose rows are in a directory of the test."""

    @asynccontextmanager
    async def archive(documents, console):
        yield "archive"

    @asynccontextmanager
    async def engines(kind):
        yield fresh

    made = [(f"text {n}", f"{n}?") for n in (1, 2)]
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    monkeypatch.setattr(modules_real, "archive", archive)
    monkeypatch.setattr(modules_real, "engines", engines)
    monkeypatch.setattr(modules_real, "questions", lambda source: made)
    return lambda: read_rows(NAME, STUDY, quick=False)


def row(pair, engine="vllm", commit="c", chain_s=2.0, kairos_s=1.0, is_same=True):
    return Row(
        commit=commit,
        date="2026-01-02",
        engine=engine,
        pair=pair,
        chain_s=chain_s,
        kairos_s=kairos_s,
        is_same=is_same,
    )


async def test_who_goes_first_changes_from_pair_to_pair(ran):
    made = [
        await run_pair(number, ("text", "Why?"), "vllm", fresh, "archive", CONSOLE)
        for number in (1, 2)
    ]

    assert ran == [(True, "archive"), (False, "archive"), (False, "archive"), (True, "archive")]
    assert [(each.chain_s, each.kairos_s, each.is_same) for each in made] == [(2.0, 1.5, True)] * 2


async def test_rows_are_kept_as_pairs_end_and_a_run_that_was_cut_goes_on(ran, kept, monkeypatch):
    monkeypatch.setattr(modules_real, "commit", lambda: "c")
    await measure(1, "vllm", None, CONSOLE)
    assert [each.pair for each in kept()] == [1]

    del ran[:]
    await measure(2, "vllm", None, CONSOLE)
    await measure(1, "llama", None, CONSOLE)
    assert [each[0] for each in ran] == [False, True, True, False]
    assert [(each.engine, each.pair) for each in kept()] == [
        ("vllm", 1),
        ("vllm", 2),
        ("llama", 1),
    ]

    monkeypatch.setattr(modules_real, "commit", lambda: "d")
    await measure(1, "vllm", None, CONSOLE)
    assert [(each.commit, each.engine) for each in kept()] == [("c", "llama"), ("d", "vllm")]


def test_the_question_in_other_words_is_sought_in_the_archive_beside_the_runs_own_passages():
    plan = compile_plan(asking_archive().declaration)
    found = [each.params for each in plan.declaration.operators if isinstance(each.params, Search)]

    assert sorted(each.collection or "" for each in found) == ["", "archive"]
    assert {"expanded", "question", "first"} <= plan.freed.keys()


def test_the_share_of_pairs_that_end_earlier_is_told_once_all_are_there():
    rows = [row(n) for n in range(1, PAIRS - 1)]
    rows += [row(PAIRS - 1, chain_s=1.0), row(PAIRS, is_same=False)]

    assert figures(rows[:-1]) == []
    [found] = figures(rows)
    assert found.value == 39 / 40
    assert found.detail == {"pairs": 40, "times as fast": 1.975, "other answers": 1}


def test_the_report_tells_the_pairs_of_each_engine_with_their_commits_and_dates():
    said = section([row(1), row(2, chain_s=0.5), row(1, engine="llama", commit="d", chain_s=3.0)])

    assert "| vllm | 2 | 1 | 1.25 | 1.00 | 1.25 | 0.50 | 0 |" in said
    assert "| llama | 1 | 1 | 3.00 | 1.00 | 3.00 | 3.00 | 0 |" in said
    assert said.endswith("Of commit c, 2026-01-02, commit d, 2026-01-02.")


def test_a_document_is_some_reports_with_a_question_of_theirs(monkeypatch):
    made = [
        {"text": f"report {n}", "questions": [{"question": f"{n}?"}] if n % 8 else []}
        for n in range(9)
    ]
    monkeypatch.setattr(modules_real, "reports", lambda source: iter(made))

    found = list(questions(None))
    assert found[0] == ("report 0\n\nreport 1\n\nreport 2\n\nreport 3", "1?")
    assert [asked for _, asked in found] == ["1?", "4?"]
