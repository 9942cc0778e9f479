"""`kairos agents run` and `submit` as people start them: processes that meet on a real Kafka."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kairos import agent
from kairos.cli.demo import Demo
from kairos.cli.demos.engines import LENGTHS, SCRIPT
from kairos.cli.demos.plan import plan_submissions
from kairos.cluster import MemoryBus, Tail, cluster_of, ensure_topics
from kairos.core import Topic
from kairos.proxy import HttpLLM
from kairos.settings import Settings
from kairos.simulate import plan_arrivals
from tests.support.host import forked
from tests.support.simulate.standin import (
    INSTANT,
    Script,
    StandInSettings,
    load,
    load_lengths,
    serve,
)

pytestmark = pytest.mark.kafka

LIMIT_S = 60
ROOT = Path(__file__).parents[3]
RELAY = """
from kairos.agent import Application

app = Application("{name}", entry="first")

@app.agent("first")
async def first(task):
    said = await task.complete("first", task.text("text"), max_tokens=3)
    await task.send("second", task.value | {{"first": said}})

@app.agent("second")
async def second(task):
    await task.finish(task.value | {{"second": await task.complete("s", "t", max_tokens=3)}})
"""


class Process:
    """A `kairos` command that runs. Its lines are kept, and its errors go where the test's go."""

    def __init__(self, process):
        self._process = process

    async def says(self, text):
        """The first line, from here on, that has the text."""
        async with asyncio.timeout(LIMIT_S):
            async for line in self._process.stdout:
                if text in line.decode():
                    return line.decode()
        raise AssertionError(f"it ended without saying '{text}'")

    def signal(self, number):
        self._process.send_signal(number)

    async def ended(self, within_s=LIMIT_S):
        """Exit code, and what it printed that has not been read."""
        async with asyncio.timeout(within_s):
            output, _ = await self._process.communicate()
        return self._process.returncode, output.decode()


@asynccontextmanager
async def processes(directory):
    """`await start(ARGUMENT, ...)` starts a `kairos`, there. None of them is left behind."""
    started = []
    inherited = {name: value for name, value in os.environ.items() if "KAIROS" not in name}

    async def start(*arguments, stdin=None):
        process = await forked.start(
            *("kairos.cli.main", *arguments),
            fresh=True,
            env=inherited | {"PYTHONPATH": str(ROOT)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            cwd=directory,
        )
        started.append(process)
        return Process(process)

    try:
        yield start
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def kairos_command(tmp_path):
    async with processes(tmp_path) as start:
        yield start


@pytest.fixture
def relay(tmp_path):
    """An application that nobody else has: two agents, each of which asks the model once."""
    name = f"relay-{secrets.token_hex(4)}"
    (tmp_path / "relay.py").write_text(RELAY.format(name=name))
    return name


class Results:
    """All results that come on the bus, and how often."""

    def __init__(self, tail):
        self._tail = tail
        self.values = {}
        self.times = Counter()

    async def until(self, ids):
        async with asyncio.timeout(LIMIT_S):
            while not set(ids) <= set(self.values):
                for message in await self._tail.batch():
                    result = agent.read_result(message)
                    self.values[result.workflow_id] = result.value
                    self.times[result.workflow_id] += 1
        return [self.values[each] for each in ids]


@pytest.fixture
async def results(kafka):
    connection = cluster_of(Settings(bus=kafka), {})
    await ensure_topics(connection, [Topic.RESULTS])
    async with Tail(connection, Topic.RESULTS) as tail:
        yield Results(tail)


def says(engine):
    """The engine answers each call at once, with how many there were."""

    async def answer(request):
        await engine.turns.acquire()
        message = {"role": "assistant", "content": f"answer {len(engine.calls)}"}
        return web.json_response({"choices": [{"message": message}]})

    engine.answer = answer


def names(calls):
    return [(call.headers["x-request-id"], call.headers["x-kairos-agent"]) for call in calls]


async def test_a_task_goes_through_the_processes_of_its_agents(
    kafka, kairos_command, relay, engine
):
    says(engine)
    engine.release(2)
    run = ("agents", "run", "relay", "--bus", kafka, "--url", engine.url)
    first = await kairos_command(*run, "--agent", f"{relay}.first")
    second = await kairos_command(*run, "--agent", f"{relay}.second", "--model", "other")
    assert "model tiny" in await first.says("LLM calls go to")
    await first.says(f"ready: running {relay}.first")
    await second.says(f"ready: running {relay}.second")

    task = '{"text": "t", "else": 1}'
    submit = await kairos_command(
        "agents", "submit", "relay", task, "--bus", kafka, "--msg-id", "w", "--deadline", "60"
    )
    code, output = await submit.ended()

    assert (code, json.loads(output)) == (
        0,
        {
            "msg_id": "w",
            "app": relay,
            "value": {"text": "t", "else": 1, "first": "answer 1", "second": "answer 2"},
        },
    )
    bodies = [json.loads(call.body) for call in engine.calls]
    assert [body["model"] for body in bodies] == ["tiny", "other"]
    assert [name for _, name in names(engine.calls)] == ["first", "second"]
    for process in (first, second):
        process.signal(signal.SIGTERM)
        assert await process.ended(10) == (
            0,
            "kairos: stopped; what was not done waits on the bus\n",
        )


async def test_a_workflow_that_fails_or_comes_too_late_ends_with_an_error_and_status_1(
    kafka, kairos_command, relay, engine
):
    says(engine)
    engine.release(9)
    process = await kairos_command("agents", "run", "relay", "--bus", kafka, "--url", engine.url)
    await process.says("ready")

    async def submitted(*arguments):
        submit = await kairos_command("agents", "submit", "relay", *arguments, "--bus", kafka)
        code, output = await submit.ended()
        return code, json.loads(output)["value"]

    late, wrong = await asyncio.gather(
        submitted('{"text": "t"}', "--deadline", "0"), submitted("{}")
    )
    assert late == (1, {"error": "the deadline passed before first was done"})
    assert wrong == (
        1,
        {"error": "first failed: InvalidRequest: the message's value has no text 'text'"},
    )
    assert engine.calls == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.smoke)],
    ids=["SIGTERM", "SIGKILL"],
)
async def test_what_a_process_leaves_undone_another_does(
    kafka, kairos_command, relay, engine, results, tmp_path, number
):
    says(engine)
    run = ("agents", "run", "relay", "--bus", kafka, "--url", engine.url)
    first = await kairos_command(*run)
    await first.says("ready")
    (tmp_path / "tasks.jsonl").write_text('{"text": "t"}\n' * 20)
    submit = await kairos_command(
        "agents", "submit", "relay", "@tasks.jsonl", "--bus", kafka, "--wait", "0"
    )
    code, output = await submit.ended()
    ids = output.split()
    assert (code, len(set(ids))) == (0, 20)
    await engine.called(20)
    engine.release(5)  # some have got on to the second agent
    await engine.called(25)

    first.signal(number)
    code, _ = await first.ended(10)
    assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    calls_before = len(engine.calls)
    engine.release(1_000)
    second = await kairos_command(*run)
    await second.says("ready")
    values = await results.until(ids)

    assert all(value.keys() == {"text", "first", "second"} for value in values)
    assert {results.times[each] for each in ids} == {1}
    # What is done again is done under the names that it had.
    before, after = names(engine.calls[:calls_before]), names(engine.calls[calls_before:])
    assert len(set(before) | set(after)) == 40
    second.signal(signal.SIGTERM)
    await second.ended(10)


async def test_processes_share_the_work_and_one_that_joins_takes_its_part(
    kafka, kairos_command, relay, engine, results, tmp_path
):
    says(engine)
    engine.release(1_000)
    run = ("agents", "run", "relay", "--bus", kafka, "--url", engine.url)
    started = [await kairos_command(*run), await kairos_command(*run)]
    for process in started:
        await process.says("ready")
    (tmp_path / "tasks.jsonl").write_text('{"text": "t"}\n' * 50)
    submit = ("agents", "submit", "relay", "@tasks.jsonl", "--bus", kafka)
    submitting = await kairos_command(*submit)
    started.append(await kairos_command(*run))
    code, output = await submitting.ended()
    ids = [json.loads(line)["msg_id"] for line in output.splitlines()]
    await results.until(ids)

    assert (code, len(set(ids))) == (0, 50)
    assert {results.times[each] for each in ids} == {1}
    for process in started:
        process.signal(signal.SIGTERM)
    for process in started:
        assert (await process.ended(10))[0] == 0


async def in_one_process(url, submissions):
    """What the workflows of these tasks come to without any Kafka."""
    bus, results, all_in = MemoryBus(), {}, asyncio.Event()

    async def take(message):
        results[message.key] = agent.read_result(message).value
        if len(results) == len(submissions):
            all_in.set()

    apps = {each.app.name: each.app for each in submissions}.values()
    async with HttpLLM(f"{url}/v1", model="tiny") as llm, asyncio.timeout(LIMIT_S):
        jobs = [
            asyncio.create_task(agent.run(apps, bus, llm)),
            asyncio.create_task(bus.consume(Topic.RESULTS, "test", take)),
        ]
        for number, each in enumerate(submissions):
            await agent.submit(bus, each.app, each.value, now_us=1, msg_id=str(number))
        await all_in.wait()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    return [results[str(number)] for number in range(len(submissions))]


@pytest.mark.parametrize("llm", ["http", "bus"])
async def test_the_example_applications_as_processes_come_to_what_they_come_to_in_one(
    kafka, tmp_path, llm
):
    pool = ("--pool", f"pool-{secrets.token_hex(4)}")
    options = Demo(workflows=12, seed=5)
    arrivals = plan_arrivals(options.arrivals, options.workflows, options.rate, options.seed)
    submissions = plan_submissions(options, arrivals.at_us)
    says = Script(load(SCRIPT), 5, load_lengths(LENGTHS))
    async with AsyncExitStack() as stack:
        start = await stack.enter_async_context(processes(ROOT))
        engine = await stack.enter_async_context(
            serve(StandInSettings(model="tiny", timing=INSTANT), says)
        )
        serve_options = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        over_bus = ("--bus", kafka, *pool) if llm == "bus" else ()
        gateway = await start("serve", *serve_options, *over_bus)
        url = (await gateway.says("serving on")).split("/v1")[0].split()[-1]
        expected = await in_one_process(url, submissions)
        apps = ("qa", "rg", "cg")
        calls = ("--llm", "bus", "--model", "tiny", *pool) if llm == "bus" else ("--url", url)
        runs = [
            await start("agents", "run", f"agents.{app}", "--bus", kafka, *calls) for app in apps
        ]
        for process in runs:
            await process.says("ready")
        found, submits = {}, {}
        for app in apps:
            own = [n for n, each in enumerate(submissions) if each.app.name == app]
            file = tmp_path / f"{app}.jsonl"
            file.write_text("\n".join(json.dumps(submissions[n].value) for n in own))
            submits[app] = await start(
                "agents", "submit", f"agents.{app}", f"@{file}", "--bus", kafka
            )
        for app, submit in submits.items():
            code, output = await submit.ended()
            assert code == 0, output
            found[app] = [json.loads(line)["value"] for line in output.splitlines()]

    for app in apps:
        wanted = [expected[n] for n, each in enumerate(submissions) if each.app.name == app]
        assert len(wanted) >= 2
        assert sorted(map(repr, found[app])) == sorted(map(repr, wanted))
