"""Runs whose journal is on a real Kafka: each host has a directory of its own, and takes over."""

import asyncio
import json
import sqlite3
from collections import Counter
from contextlib import closing, suppress

import pytest

from kairos.flow import Flow
from kairos.live.runs.large_values import MESSAGE_VALUE_BYTES
from kairos.tools.flow_run import run_flow
from tests.e2e.flow_runs import answering, command, kairos_command, prompt_of, read_rows, write_rows
from tests.support.impatient import SILENCE_S

pytestmark = pytest.mark.kafka

FLOW = """
flow: chain
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "first {{ row.text }}"}
  second: {kind: llm, prompt: "second {{ first }}"}
outputs: {first: first, second: second}
"""
ROWS = 120
AWAY_S = 12  # longer than sessions and transactions
SLOTS = 4  # of the engine; twice as many calls are in flight


class Host:
    """One of several: a directory of its own, with the flow and the table."""

    def __init__(self, directory, bus, engine):
        self.directory, self._bus, self._engine = directory, bus, engine
        directory.mkdir()
        (directory / "flow.yaml").write_text(FLOW)
        write_rows(directory / "rows.jsonl", [{"text": f"text {n}"} for n in range(ROWS)])

    def begin(self, *more):
        files = ("flow.yaml", "--inputs", "rows.jsonl", "--out", "out.jsonl", "--no-cache")
        return command(self.directory, "run", *files, *self._asked, "--bus", self._bus, *more)

    @property
    def _asked(self):
        return "--engine", f"{self._engine.url},max_num_seqs={SLOTS}"

    def resume(self, name, *more):
        return command(
            self.directory,
            *("runs", "resume", name, "--bus", self._bus, "--flow", "flow.yaml"),
            *("--inputs", "rows.jsonl", "--out", "out.jsonl", *self._asked, *more),
            module="tests.support.impatient",
        )

    async def runs(self):
        status, said = await kairos_command(self.directory, "runs", "list", "--json")
        assert status == 0, said
        return json.loads(said)

    def out(self):
        return read_rows(self.directory / "out.jsonl")


@pytest.fixture
def hosts(tmp_path, kafka, engine):
    answering(engine, delay_s=0.02)
    return [Host(tmp_path / name, kafka, engine) for name in ("one", "two", "three")]


def held_after(engine, calls):
    """It answers so many calls, and the others once the event is set."""
    answer, go_on = engine.answer, asyncio.Event()

    async def held(request):
        if len(engine.calls) > calls:
            await go_on.wait()
        return await answer(request)

    engine.answer = held
    return go_on


async def journalled(host, at_least):
    """How many results of the run are on the disk there, which came back from Kafka before."""
    async with asyncio.timeout(60):
        while True:
            for path in host.directory.glob("kairos/runs/*/journal.sqlite"):
                # It may have been made this moment.
                with (
                    suppress(sqlite3.OperationalError),
                    closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file,
                ):
                    (count,) = file.execute("SELECT count(*) FROM results").fetchone()
                    if count >= at_least:
                        return count
            await asyncio.sleep(0.05)


async def test_another_host_goes_on_after_sigkill_and_does_nothing_again_that_was_journalled(
    hosts, engine
):
    one, two, three = hosts
    async with one.begin() as first:
        known = await journalled(one, 60)
        first.kill()
        await first.end()
    before = len(engine.calls)
    [run] = await one.runs()
    assert run["state"] == "interrupted"
    async with two.resume(run["id"]) as second:
        status, said = await second.end()

    assert status == 0, said
    assert [row["row"] for row in two.out()] == list(range(ROWS))
    asked = Counter(prompt_of(call) for call in engine.calls)
    assert len(asked) == 2 * ROWS
    # What had been answered, and was not journalled: in flight, or on its way to Kafka.
    assert asked.total() - 2 * ROWS <= before - known
    assert len(engine.calls) - before <= 2 * ROWS - known

    # A third, and the first again, have nothing left to do, and write the same table.
    done = len(engine.calls)
    for host in (three, one):
        async with host.resume(run["id"]) as again:
            status, said = await again.end()
        assert status == 0, said
        assert host.out() == two.out()
    assert len(engine.calls) == done
    assert {each["state"] for host in hosts for each in await host.runs()} == {"done"}


async def test_of_two_hosts_that_execute_a_run_the_first_ends_and_the_results_are_there_once(
    hosts, engine
):
    one, two, _ = hosts
    go_on = held_after(engine, 60)
    async with one.begin() as first:
        known = await journalled(one, 60)
        [run] = await one.runs()
        async with two.resume(run["id"]) as second:
            await journalled(two, known)
            status, said = await first.end()
            go_on.set()
            assert status == 1
            assert f"the run {run['id']} is executed on" in said.replace("\n", " ")
            status, said = await second.end()
    assert status == 0, said
    assert [row["row"] for row in two.out()] == list(range(ROWS))
    assert not (one.directory / "out.jsonl").exists()
    assert max(Counter(prompt_of(call) for call in engine.calls).values()) <= 2


async def test_a_host_that_stands_by_goes_on_once_the_other_is_dead_and_not_before(hosts, engine):
    one, two, three = hosts
    go_on = held_after(engine, 60)
    async with one.begin() as first:
        await journalled(one, 60)
        [run] = await one.runs()
        async with two.resume(run["id"], "--stand-by") as second:
            # Longer than the silence that would be taken for death: it tells of itself.
            await asyncio.sleep(2 * SILENCE_S)
            assert not list(two.directory.glob("kairos/runs/*"))
            first.kill()
            await first.end()
            go_on.set()
            status, said = await second.end()
    assert status == 0, said
    assert [row["row"] for row in two.out()] == list(range(ROWS))

    async with three.resume(run["id"], "--stand-by") as third:
        status, said = await third.end()
    assert (status, f"{run['id']} is done" in said) == (0, True), said


async def test_a_run_that_is_cancelled_on_one_host_ends_on_the_other(hosts, engine):
    one, two, three = hosts
    held_after(engine, 60)
    async with one.begin() as first:
        known = await journalled(one, 60)
        [run] = await one.runs()
        first.kill()
        await first.end()
    async with two.resume(run["id"]) as second:
        await journalled(two, known)
        status, said = await kairos_command(one.directory, "runs", "cancel", run["id"])
        assert status == 0, said
        status, said = await second.end()
        assert status == 1, said
    async with three.resume(run["id"]) as third:
        status, said = await third.end()
    assert (status, "was cancelled" in said) == (1, True), said


async def test_a_broker_that_is_away_for_longer_than_any_session_costs_a_run_nothing(
    broker, tmp_path, engine
):
    answering(engine, delay_s=0.02)
    host = Host(tmp_path / "one", broker.url, engine)
    async with host.begin() as first:
        await journalled(host, 40)
        broker.kill()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(broker.start)
        status, said = await first.end()
    assert status == 0, said
    assert [row["row"] for row in host.out()] == list(range(ROWS))
    assert len(engine.calls) == 2 * ROWS
    [run] = await host.runs()
    again = Host(tmp_path / "two", broker.url, engine)
    async with again.resume(run["id"]) as second:
        status, said = await second.end()
    assert status == 0, said
    assert again.out() == host.out()
    assert len(engine.calls) == 2 * ROWS


async def test_a_program_goes_on_with_its_run_on_another_host(tmp_path, kafka, engine):
    answering(engine)
    rows = [{"text": f"text {n}"} for n in range(20)]

    def run(host, **fields):
        f = Flow("program")
        f.output("said", f.llm("say", "{{ row.text }}", row=f.input("row")))
        out, engines = tmp_path / f"{host}.jsonl", [f"{engine.url},max_num_seqs={SLOTS}"]
        own = {"root": tmp_path / host, "uses_cache": False, "bus": kafka}
        return run_flow(f, rows, out, engines=engines, **own, **fields)

    first = await asyncio.to_thread(run, "one", max_calls=8)
    assert (first.state, len(engine.calls)) == ("stopped", 8)
    second = await asyncio.to_thread(run, "two", resume=first.id)

    assert (second.state, len(engine.calls)) == ("done", 20)
    assert second.figures["calls"] == 20
    assert [row["row"] for row in read_rows(tmp_path / "two.jsonl")] == list(range(20))


async def test_large_answers_go_from_host_to_host_by_a_directory_that_both_see(hosts, engine):
    one, two, _ = hosts
    shared = one.directory.parent / "values"
    answering(engine, lambda body: "x" * MESSAGE_VALUE_BYTES if "text 7" in str(body) else "small")
    async with one.begin("--values", shared) as first:
        status, said = await first.end()
    assert status == 0, said
    [run] = await one.runs()
    done = len(engine.calls)
    async with two.resume(run["id"], "--values", shared) as second:
        status, said = await second.end()
    assert status == 0, said
    assert two.out() == one.out()
    assert len(engine.calls) == done
