"""`kairos demo` as a person runs it."""

import asyncio
import json
import os
import re
import secrets
import signal
import sys
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kairos.cli.demos.engines import LENGTHS, SCRIPT
from tests.support.cluster import impatient
from tests.support.host import forked
from tests.support.simulate.model import read_workflows
from tests.support.simulate.standin import (
    INSTANT,
    Script,
    StandInSettings,
    load,
    load_lengths,
    serve,
)
from tests.support.vllm import needs_vllm
from tests.support.waiting import until

MARK = "KAIROS_TEST_MARK"
KAIROS = Path(sys.executable).with_name("kairos")


def processes_of(mark):
    """All processes that inherited the mark: the demo and whatever it started."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


@asynccontextmanager
async def demo(*options, fresh=False, module="kairos.cli.main", **environment):
    """A running demo, and the mark of its processes, which a fork has not. None of them is left
    behind."""
    mark = secrets.token_hex(8)
    process = await forked.start(
        *(module, "demo", *options),
        fresh=fresh,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, MARK: mark, "COLUMNS": "120", **environment},
        start_new_session=True,
    )
    try:
        yield process, mark
    finally:
        for pid in processes_of(mark):
            os.kill(pid, signal.SIGKILL)
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def quick_engine():
    """Says what the demo's stand-ins say, at once; and the option that names it."""
    says = Script(load(SCRIPT), 0, load_lengths(LENGTHS))
    async with serve(StandInSettings(timing=INSTANT), says) as engine:
        yield engine, ("--engine", f"{engine.url},max_num_seqs=4")


async def until_serving(process):
    async with asyncio.timeout(60):
        async for line in process.stdout:
            if line.startswith(b"Kairos serves"):
                return


async def until_gone(mark):
    await until(lambda: not processes_of(mark))


def paths(record):
    """Agents of each workflow in the order of their calls, with their upstreams, by app."""
    calls = defaultdict(list)
    app_of = {}
    for call in read_workflows(record):
        app_of[call.workflow_id] = call.app
        calls[call.workflow_id].append((call.upstream, call.agent))
    by_app = defaultdict(list)
    for workflow_id, path in calls.items():
        by_app[app_of[workflow_id]].append(path)
    return by_app


def check_paths(by_app):
    """The calls, as Kairos saw them, make up the applications' true workflows."""
    for path in by_app["qa"]:
        assert path[0] == ("user", "router")
        assert path[1:] in ([("router", "mathematics")], [("router", "humanities")])
    for path in by_app["rg"]:
        assert path == [("user", "researcher"), ("researcher", "writer")]
    plan = [
        ("user", "product_manager"),
        ("product_manager", "architect"),
        ("architect", "project_manager"),
        ("project_manager", "engineer"),
        ("engineer", "qa_engineer"),
    ]
    again = [("qa_engineer", "engineer"), ("engineer", "qa_engineer")]
    for path in by_app["cg"]:
        assert path in (plan, plan + again, plan + again + again)


@pytest.mark.parametrize("on", ["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def test_three_applications_run_to_their_end_and_the_record_shows_their_workflows(
    tmp_path, on, request
):
    record = tmp_path / "run.jsonl"
    bus = ("--bus", request.getfixturevalue("kafka") if on == "kafka" else "memory")
    options = ("--workflows", "6", "--rate", "50", "--record", str(record), *bus)
    async with quick_engine() as (_, named), demo(*named, *options, "--json") as (process, mark):
        printed, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        await until_gone(mark)

    figures = json.loads(printed)
    by_app = paths(record)
    check_paths(by_app)
    assert {app: len(of_app) for app, of_app in by_app.items()} == {"qa": 3, "rg": 2, "cg": 1}
    assert figures["workflows"] == 6
    assert figures["calls"] == sum(len(path) for of_app in by_app.values() for path in of_app)
    assert set(figures["apps"]) == {"qa", "rg", "cg"}
    assert 0 < figures["e2e_s"]["p50"] <= figures["e2e_s"]["p99"]
    assert figures["s_per_token"]["mean"] > 0


async def test_answers_tables_and_arrivals_are_shown(tmp_path):
    record = tmp_path / "run.jsonl"
    options = ("--engine", "sim", "--apps", "qa", "--workflows", "2", "--rate", "9")
    async with demo(*options, "--record", str(record)) as (process, _):
        printed, said = await process.communicate()

    shown = printed.decode()
    assert process.returncode == 0, said.decode()
    assert "expert:" in shown
    for table in ("Applications", "Agents"):
        assert table in shown
    assert "the trace: CV 1.09, index of dispersion 1.39/3.86/16.10 at 1/10/60 s" in shown
    lengths = load_lengths(LENGTHS)
    assert all(call.completion_tokens in lengths[call.agent] for call in read_workflows(record))


async def test_both_policies_are_given_the_same_tasks_and_their_figures_are_compared(tmp_path):
    record = tmp_path / "run.jsonl"
    options = ("--workflows", "6", "--rate", "50", "--policy", "fcfs", "--versus", "fcfs-app")
    async with quick_engine() as (engine, named):
        async with demo(*named, *options, "--record", str(record), "--json") as (process, _):
            printed, said = await process.communicate()
        bodies = Counter(call.body for call in engine.received if call.path.endswith("completions"))

    assert process.returncode == 0, said.decode()
    runs, ratio = json.loads(printed)["runs"], json.loads(printed)["ratio"]
    assert list(runs) == ["fcfs", "fcfs-app"]
    calls = [run["calls"] for run in runs.values()]
    assert calls == 2 * [len(list(read_workflows(record)))]
    assert bodies.total() == 2 * runs["fcfs"]["calls"]
    assert all(count % 2 == 0 for count in bodies.values())
    assert (
        ratio["e2e_s"]["mean"] == runs["fcfs"]["e2e_s"]["mean"] / runs["fcfs-app"]["e2e_s"]["mean"]
    )
    assert set(ratio["apps"]) == {"qa", "rg", "cg"}


async def test_each_run_has_engines_of_its_own_and_says_what_it_did_not_finish():
    options = ("--engine", "sim", "--apps", "qa", "--workflows", "2", "--rate", "9")
    policies = ("--policy", "fcfs", "--versus", "fcfs-app", "--time-limit", "1")
    async with demo(*options, *policies, module=impatient.__name__) as (process, _):
        printed, said = await process.communicate()

    assert process.returncode == 1
    assert "2 of 2 workflows did not finish in time under fcfs" in said.decode()
    assert "2 of 2 workflows did not finish in time under fcfs-app" in said.decode()
    said_of = re.findall(r"(fcfs|fcfs-app): .* is ready at (\S+)", printed.decode())
    assert len({address for _, address in said_of}) == 4
    assert Counter(policy for policy, _ in said_of) == {"fcfs": 2, "fcfs-app": 2}
    assert f"in virtual time: {impatient.SEEDS} seeds" in printed.decode()
    assert "are not compared" in printed.decode()


async def test_ctrl_c_in_the_second_run_still_shows_and_records_the_first(tmp_path):
    record = tmp_path / "run.jsonl"
    options = ("--apps", "qa", "--workflows", "3", "--rate", "3", "--policy", "fcfs")
    async with (
        quick_engine() as (engine, named),
        demo(*named, *options, "--versus", "fcfs-app", "--record", str(record)) as (process, _),
    ):
        async with asyncio.timeout(60):
            while b"Run 2 of 2" not in await process.stdout.readline():
                pass
        engine.batch.pause()  # so that the second cannot end
        await until_serving(process)
        process.send_signal(signal.SIGINT)
        printed, said = await process.communicate()

    assert process.returncode == 130
    assert b"Applications" in printed
    assert [len(path) for path in paths(record)["qa"]] == [2, 2, 2]
    assert b"Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_however_it_is_ended_nothing_that_it_started_remains(number):
    async with demo("--engine", "sim", "--workflows", "6", fresh=True) as (process, mark):
        await until_serving(process)
        async with asyncio.timeout(60):
            while len(processes_of(mark)) != 3:  # what one of them starts may pass for it at first
                await asyncio.sleep(0.05)
        process.send_signal(number)
        await until_gone(mark)
        _, said = await process.communicate()

    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert b"Traceback" not in said


async def test_what_was_finished_before_ctrl_c_is_kept(tmp_path):
    record = tmp_path / "run.jsonl"
    options = ("--engine", "sim", "--apps", "qa", "--workflows", "40", "--record", str(record))
    async with demo(*options) as (process, _):
        await until_serving(process)
        async with asyncio.timeout(60):
            async for line in process.stdout:
                if b"finished" in line and b"finished 0/" not in line:
                    break
        process.send_signal(signal.SIGINT)
        await process.communicate()

    check_paths(
        {"qa": [path for path in paths(record)["qa"] if len(path) == 2], "rg": [], "cg": []}
    )
    assert len(paths(record)["qa"]) >= 1


async def test_tasks_that_do_not_end_in_time_are_counted_and_fail_the_demo():
    options = ("--engine", "sim", "--apps", "cg", "--workflows", "1", "--time-limit", "0.5")
    async with demo(*options) as (process, _):
        _, said = await process.communicate()

    assert process.returncode == 1
    assert b"1 of 1 workflows did not finish in time" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--apps", "qa,chess"), "there is no application 'chess'; choose from: qa, rg, cg"),
        (("--engine", "http://127.0.0.1:9"), "not all engines can be used: 127.0.0.1:9:"),
        (("--engine", "nonsense"), "'nonsense' is not a URL"),
        (("--arrivals", "tides"), "no arrivals are called 'tides'; choose one of: poisson, azure"),
        (("--inputs", "tides"), "no inputs are called 'tides'; choose from: gsm8k_test"),
        (("--inputs", "mbpp", "--apps", "cg"), "run: kairos traces fetch mbpp"),
        (("--rate", "0"), "the rate must be above 0"),
        (("--policy", "luck"), "there is no policy 'luck'"),
        (("--versus", "luck"), "there is no policy 'luck'"),
        (("--policy", "fcfs", "--versus", "fcfs"), "'fcfs' compares it with itself"),
    ],
)
async def test_what_cannot_work_is_said_in_one_line(options, message, tmp_path):
    async with demo("--workflows", "1", *options, KAIROS_HOME=str(tmp_path)) as (process, _):
        _, said = await process.communicate()

    assert process.returncode not in (0, None)
    assert message in said.decode()
    assert "Traceback" not in said.decode()


@pytest.mark.real
async def test_the_demo_runs_on_the_real_model(tmp_path):
    record = tmp_path / "run.jsonl"
    async with demo("--workflows", "6", "--record", str(record), "--json") as (process, mark):
        printed, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        await until_gone(mark)

    by_app = paths(record)
    check_paths(by_app)
    calls = [call for call in read_workflows(record) if call.agent != "router"]
    assert len({call.completion_tokens for call in calls}) > 3  # a model decides when it is done
    assert json.loads(printed)["workflows"] == 6


@pytest.mark.vllm
async def test_the_demo_runs_on_vllm(tmp_path):
    needs_vllm()
    record = tmp_path / "run.jsonl"
    options = ("--engine", "vllm", "--workflows", "6", "--rate", "5", "--record", str(record))
    async with demo(*options, "--json") as (process, mark):
        printed, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        await until_gone(mark)

    check_paths(paths(record))
    assert json.loads(printed)["workflows"] == 6
    assert "its answers are noise" in said.decode()
