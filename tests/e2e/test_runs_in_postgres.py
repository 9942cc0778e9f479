"""Runs of one process whose results are in a real PostgreSQL: another host goes on with them."""

import asyncio

import pytest

from tests.e2e.cli.flow_runs import (
    answering,
    command,
    completion,
    kairos_command,
    read_rows,
    write_rows,
)
from tests.support.postgres import postgres

FLOW = """
flow: chain
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "{{ row.text }}"}
  second: {kind: llm, prompt: "{{ first }}, again", temperature: 1}
outputs: {first: first, second: second}
"""
ROWS, AT_ONCE = 60, 4
PLACES = ("--inputs", "rows.jsonl", "--out", "out.jsonl")


@pytest.fixture(scope="module")
def database():
    with postgres() as url:
        yield url


@pytest.fixture
def hosts(tmp_path):
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "chain.yaml").write_text(FLOW)
        write_rows(folder / "rows.jsonl", [{"text": f"text {n}"} for n in range(ROWS)])
        made.append(folder)
    return made


def words(engine, database):
    named = ("--url", engine.url, "--results", database, "--concurrency", str(AT_ONCE))
    return ("run", "chain.yaml", *PLACES, *named)


def asked(engine):
    return [call for call in engine.calls if call.path.endswith("/chat/completions")]


def run_of(folder):
    (run,) = (folder / "kairos" / "runs").iterdir()
    return run.name


async def begun(folder, engine, database):
    """Begin a run on a host, and kill it when a third of its calls are made. Return its name."""
    async with command(folder, *words(engine, database)) as started:
        await engine.until(lambda: len(asked(engine)) >= 2 * ROWS // 3)
        started.kill()
        await started.end()
    return run_of(folder)


async def test_another_host_goes_on_with_a_run_whose_host_is_lost(hosts, engine, database):
    numbers = iter(range(10_000))
    answering(engine, lambda body: completion(f"no. {next(numbers)}"), delay_s=0.05)
    name = await begun(hosts[0], engine, database)
    resume = ("runs", "resume", name, "--results", database)
    status, said = await kairos_command(hosts[1], *resume)
    assert (status, "give --flow, --inputs, --out, --engine" in said) == (1, True), said
    named = ("--flow", "chain.yaml", *PLACES, "--url", engine.url)
    status, said = await kairos_command(hosts[1], *resume, *named)
    assert status == 0, said
    out = read_rows(hosts[1] / "out.jsonl")
    assert [row["row"] for row in out] == list(range(ROWS))
    assert len({row["second"] for row in out}) == ROWS
    # At most what was in flight, and answers of the last moments, which were not written yet.
    assert len(asked(engine)) <= 2 * ROWS + 5 * AT_ONCE


async def test_the_host_that_had_it_loses_it_to_the_one_that_resumes_it(hosts, engine, database):
    answering(engine, lambda body: completion("x"), delay_s=0.2)
    async with command(hosts[0], *words(engine, database)) as first:
        await engine.until(lambda: len(asked(engine)) >= 8)
        named = ("--flow", "chain.yaml", *PLACES, "--url", engine.url)
        resume = ("runs", "resume", run_of(hosts[0]), "--results", database, *named)
        status, said = await kairos_command(hosts[1], *resume)
        assert status == 0, said
        async with asyncio.timeout(60):
            status, said = await first.end()
    assert status != 0
    assert "another process has this part of the run now" in said
    assert "Traceback" not in said
    assert not (hosts[0] / "out.jsonl").exists()
    assert len(read_rows(hosts[1] / "out.jsonl")) == ROWS


async def test_a_run_that_is_cancelled_leaves_nothing_to_resume(hosts, engine, database):
    answering(engine, delay_s=0.05)
    name = await begun(hosts[0], engine, database)
    status, said = await kairos_command(hosts[0], "runs", "cancel", name)
    assert status == 0, said
    named = ("--flow", "chain.yaml", *PLACES, "--url", engine.url)
    status, said = await kairos_command(
        hosts[1], "runs", "resume", name, "--results", database, *named
    )
    assert (status, "knows of no run" in said) == (1, True), said
