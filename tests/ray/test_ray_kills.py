"""Runs on Ray through kills of what drives them, and without their database for a minute."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter

import pytest

from kairos.host import start_child
from kairos.workflows import load_flow
from tests.e2e.cli.flow_runs import ROOT, read_rows, write_rows
from tests.ray.ray_runs import CountingEngine
from tests.support.workflows.runs import PostgresResults, RunStore, check_task, new_record, run_task

pytestmark = [pytest.mark.ray, pytest.mark.acceptance, pytest.mark.timeout(1200)]

ROWS, PRODUCTS, AT_ONCE = 600, 60, 16
AWAY_S = 60
IN_FLIGHT = 2 * AT_ONCE + 64 + 256  # calls and functions at once, and results not yet committed
FLOW = """
flow: sales
operators:
  row: {kind: input}
  facts: {kind: llm, prompt: "Facts of {{ row.product }}"}
  idea: {kind: llm, prompt: "{{ row.id }}: an idea for {{ facts }}", temperature: 1}
  sent: {kind: call, function: send, purity: effect, inputs: {text: idea}}
outputs: {id: row.id, facts: facts, idea: idea, sent: sent}
"""
FUNCTIONS = """
import os
from pathlib import Path
from kairos.flow import Functions

functions = Functions()
LOG = Path({log!r})


@functions.effect
def send(text, idempotency_key):
    with LOG.open("a") as file:
        file.write(idempotency_key + chr(10))
    return f"sent {{text}}"
"""


class Sales:
    """A run with pure, sampled and effect operators; no two sampled answers are the same."""

    def __init__(self, folder, database):
        self.folder, self.database = folder, database
        self.ideas = 0
        self.engine = CountingEngine(self.answer, delay_s=0.03)
        self.log = folder / "sent.log"
        self.log.touch()
        (folder / "sales.yaml").write_text(FLOW)
        (folder / "functions.py").write_text(FUNCTIONS.format(log=str(self.log)))
        rows = [{"id": n, "product": n % PRODUCTS} for n in range(ROWS)]
        self.inputs = write_rows(folder / "rows.jsonl", rows)
        self.out = folder / "out.jsonl"

    def answer(self, messages):
        said = messages[-1]["content"]
        if "an idea" not in said:
            return f"<{said}>"
        self.ideas += 1
        return f"{said} no. {self.ideas}"

    def task(self, store, **fields):
        loaded = load_flow(self.folder / "sales.yaml", self.folder / "functions.py")
        results = None if self.database is None else self.database.url
        record = new_record(
            store, loaded.declaration, out=str(self.out), url=self.engine.url, on="local-ray",
            partitions=2, results=results, concurrency=AT_ONCE, **fields,
        )  # fmt: skip
        return check_task(record, loaded.declaration, loaded.functions, str(self.inputs))

    async def until_asked(self, count, running):
        async with asyncio.timeout(300):
            while self.engine.calls < count:
                assert not running.done(), running
                await asyncio.sleep(0.02)

    async def committed(self, run_id):
        """Return what the database has of sampled answers, by row; of files nothing."""
        if self.database is None:
            return {}

        def read():
            store = PostgresResults(self.database.url, run_id, print, partition=99)
            known = store.resumed(0, range(ROWS))
            store.close()
            return {row: e.results["idea"].value for row, e in known.items() if "idea" in e.results}

        return await asyncio.to_thread(read)

    def check(self, before, what):
        """Check the table, and count what was done a second time."""
        out = read_rows(self.out)
        assert [row["id"] for row in out] == list(range(ROWS))
        for row in out:
            assert row["facts"] == f"<Facts of {row['id'] % PRODUCTS}>"
            assert row["idea"].startswith(f"{row['id']}: an idea for {row['facts']} no. ")
            assert row["sent"] == f"sent {row['idea']}"
        for row, idea in before.items():
            assert out[row]["idea"] == idea, "a sampled answer has changed"
        keys = Counter(self.log.read_text().split())
        assert len(keys) == ROWS
        sent_again = sum(keys.values()) - ROWS
        asked_again = self.ideas - ROWS
        print(
            f"\n{what}: {ROWS} rows; pure calls asked again {self.engine.again()}, sampled "
            f"{asked_again} (kept before: {len(before)}), effects again with their key {sent_again}"
        )
        assert asked_again <= IN_FLIGHT
        assert sent_again <= IN_FLIGHT
        assert self.engine.again() <= IN_FLIGHT


@pytest.mark.parametrize("on_database", [True, False])
async def test_a_worker_that_is_killed_is_made_again_and_the_table_is_whole(
    ray, database, tmp_path, on_database
):
    sales = Sales(tmp_path, database if on_database else None)
    store = RunStore(tmp_path / "kairos")
    async with sales.engine.running():
        task = sales.task(store)
        running = asyncio.create_task(run_task(task, store, print, lambda _: None))
        await sales.until_asked(ROWS // 3, running)
        actor = ray.get_actor(f"kairos-{task.record.id}-0", namespace="kairos")
        process = await actor.process.remote()
        before = await sales.committed(task.record.id)
        os.kill(process, signal.SIGKILL)
        record = await running
        assert record.state == "done"
        sales.check(
            before, f"a worker killed, results in {'PostgreSQL' if on_database else 'files'}"
        )


async def test_a_database_that_is_away_for_a_minute_is_waited_for(ray, database, tmp_path):
    sales, store, notes = Sales(tmp_path, database), RunStore(tmp_path / "kairos"), []
    async with sales.engine.running():
        task = sales.task(store)
        running = asyncio.create_task(run_task(task, store, notes.append, lambda _: None))
        await sales.until_asked(ROWS // 3, running)
        before = await sales.committed(task.record.id)
        await asyncio.to_thread(database.stop)
        until = asyncio.get_running_loop().time() + AWAY_S
        while asyncio.get_running_loop().time() < until:
            assert not running.done(), running
            await asyncio.sleep(1)
        asked = sales.engine.calls
        await asyncio.to_thread(database.start)
        record = await running
        assert record.state == "done"
        print(f"asked while it was away: {asked}")
        sales.check(before, f"the database away for {AWAY_S} s")
        assert sales.engine.again() == 0
        assert sales.ideas == ROWS


async def test_a_driver_that_is_killed_leaves_a_run_that_goes_on(database, tmp_path):
    sales = Sales(tmp_path, database)
    environ = os.environ | {"KAIROS_RUNS": str(tmp_path / "kairos"), "PYTHONPATH": str(ROOT)}

    async def kairos(*words):
        return await start_child(
            sys.executable, "-m", "kairos.cli.main", *words, cwd=tmp_path, env=environ,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip

    async with sales.engine.running():
        first = await kairos(
            "run", "sales.yaml", "--functions", "functions.py", "--inputs", "rows.jsonl",
            "--out", "out.jsonl", "--url", sales.engine.url, "--on", "local-ray", "--partitions",
            "2", "--results", database.url, "--concurrency", str(AT_ONCE),
        )  # fmt: skip
        said = asyncio.create_task(first.communicate())
        await sales.until_asked(ROWS // 3, said)
        sales.engine.answers.clear()  # partitions notice late, and could end all rows until then
        first.kill()
        await said
        listed, _ = await (await kairos("runs", "list", "--json")).communicate()
        run_id = json.loads(listed)[0]["id"]
        before = await sales.committed(run_id)
        assert len(before) < ROWS
        sales.engine.answers.set()
        again = await kairos("runs", "resume", run_id)
        said_again, _ = await again.communicate()
        assert again.returncode == 0, said_again.decode()
        sales.check(before, "the driver killed")
