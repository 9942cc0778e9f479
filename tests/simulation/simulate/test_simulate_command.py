"""`kairos simulate` as a person runs it: the same figures every time, whatever happens before."""

import asyncio
import errno
import gzip
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kairos.core import SECOND
from kairos.host import start_child
from kairos.observe import FactLog, read_facts
from kairos.simulate import Load, Simulation, load_workflows, offered_workload
from kairos.simulate.plan import planner
from kairos.simulate.world import WorldEvent
from tests.support.cli.command import main

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "traces" / "demo-smollm2.jsonl.gz"
KAIROS = Path(sys.executable).with_name("kairos")
LIMIT_S = 60
SPREAD = {"mean", "p50", "p90", "p95", "p99"}
RECORD = {
    "workflows",
    "calls",
    "e2e_s",
    "s_per_token",
    "ttft_s",
    "queued_share",
    "preemptions_per_call",
    "recomputed_token_share",
    "cached_prompt_share",
}


async def started(*arguments, **environment):
    return await start_child(
        KAIROS,
        "simulate",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )


@pytest.fixture
def kairos(monkeypatch, capsys):
    """Runs a command in this process: what it prints, what it says besides, and its exit status."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kairos", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        status = ended.value.code
        printed, errors = capsys.readouterr()
        if isinstance(status, str):  # what Python prints before it leaves with 1
            errors, status = errors + status, 1
        return printed, errors, status

    return run


@pytest.fixture
def run(kairos):
    return partial(kairos, "simulate")


@pytest.fixture
def engine(tmp_path):
    """A profile: slow, with little memory, so that calls wait and are preempted."""
    path = tmp_path / "slow.toml"
    path.write_text(
        'name = "slow"\nsource = "made up"\nmeasured = false\nkv_tokens = 4000\nmax_num_seqs = 8\n'
        "[step]\nfixed_us = 15000\ndecode_seq_us = 2000\nprefill_token_us = 100\n"
    )
    return path


@pytest.fixture
def usual(engine):
    return ("--workflows", RECORDED, "--profile", engine, "--instances", 2, "--rate", 3)


def parts(record):
    return [record, *record["apps"].values()]


def logged(folder):
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


async def test_two_processes_give_the_same_bytes(usual, tmp_path):
    said, logs = [], []
    for hash_seed in ("1", "2"):
        log = tmp_path / f"log-{hash_seed}"
        options = ("--count", 40, "--seed", 5, "--log", log, "--json")
        process = await started(*usual, *options, PYTHONHASHSEED=hash_seed)
        async with asyncio.timeout(LIMIT_S):
            printed, _ = await process.communicate()
        assert process.returncode == 0
        said.append(printed)
        logs.append(logged(log))

    assert said[0] == said[1]
    assert logs[0] == logs[1]
    assert b'"ProfilesLearnt"' in logs[0]


def test_another_seed_gives_another_run(run, usual, tmp_path):
    said, logs = set(), set()
    for seed in (5, 6):
        log = tmp_path / f"log-{seed}"
        printed, _, _ = run(*usual, "--count", 20, "--seed", seed, "--log", log, "--json")
        said.add(printed)
        logs.add(logged(log))

    assert len(said) == len(logs) == 2


def test_the_figures_are_the_metrics_record_and_more_beside_it(run, usual):
    printed, _, status = run(*usual, "--count", 60, "--json")
    record = json.loads(printed)

    assert status == 0
    assert set(record) >= RECORD | {"apps", "failed", "retries", "slowdown", "wasted_tokens"}
    for part in parts(record):
        assert set(part) >= RECORD
        assert all(set(part[name]) == SPREAD for name in ("e2e_s", "s_per_token", "ttft_s"))
        assert part["slowdown"]["worst"] >= part["slowdown"]["p99"] >= 1
    assert record["workflows"] == 60
    assert 0 < record["queued_share"] < 1


def test_the_log_is_one_for_explain_and_export(kairos, run, usual, tmp_path):
    log, exported = tmp_path / "log", tmp_path / "again.jsonl"
    run(*usual, "--count", 20, "--log", log)

    name = next(r.event.request.workflow_id for r in read_facts(log) if r.commands)
    explained, _, status = kairos("explain", name, "--log", log)
    assert (status, explained.startswith(name)) == (0, True)
    assert "its turn: " in explained
    _, _, status = kairos("export", "--since", "all", "--log", log, "--output", exported)
    assert status == 0

    recorded = {each.id: each for each in load_workflows(RECORDED)}
    for workflow in load_workflows(exported):
        original = recorded[workflow.id]
        assert [c.prompt_tokens for c in workflow.calls] == [
            c.prompt_tokens for c in original.calls
        ]
        assert workflow.waits_for == original.waits_for


def test_what_was_recorded_comes_again_at_its_instants_and_to_the_same(kairos, usual, tmp_path):
    """So that another policy's figures are those that it would have had."""
    log, exported = tmp_path / "log", tmp_path / "again.jsonl"
    first, _, _ = kairos("simulate", *usual, "--count", 60, "--log", log, "--json")
    kairos("export", "--since", "all", "--log", log, "--output", exported)

    pool = usual[2:-2]  # of the same instances, at no rate that is named
    again, _, _ = kairos("simulate", "--workflows", exported, *pool, "--json")
    other, _, _ = kairos("simulate", "--workflows", exported, *pool, "--policy", "fcfs", "--json")

    e2e_s = [json.loads(each)["e2e_s"]["mean"] for each in (first, again, other)]
    assert e2e_s[1] == pytest.approx(e2e_s[0], rel=0.02)
    assert e2e_s[2] > 1.1 * e2e_s[0]


def test_seeds_do_not_change_when_workflows_were_recorded(kairos, usual, tmp_path):
    log, exported = tmp_path / "log", tmp_path / "again.jsonl"
    kairos("simulate", *usual, "--count", 5, "--log", log)
    kairos("export", "--since", "all", "--log", log, "--output", exported)

    _, errors, status = kairos("simulate", "--workflows", exported, "--seeds", 2)

    assert status == 1
    assert "the file says when its workflows arrive, for every seed alike" in errors


def test_of_several_runs_the_first_is_logged(run, usual, tmp_path):
    alone, compared = tmp_path / "alone", tmp_path / "compared"
    run(*usual, "--count", 9, "--log", alone)
    run(*usual, "--count", 9, "--log", compared, "--versus", "fcfs", "--seeds", 2)

    assert list(read_facts(compared)) == list(read_facts(alone))


def test_a_log_is_not_mixed_with_another(run, usual, tmp_path):
    log = tmp_path / "log"
    run(*usual, "--count", 2, "--log", log)
    before = [(file.name, file.read_bytes()) for file in log.iterdir()]

    _, errors, status = run(*usual, "--count", 2, "--log", log)

    assert status == 1
    assert f"there is a log in {log} already" in errors
    assert [(file.name, file.read_bytes()) for file in log.iterdir()] == before


def test_two_policies_are_compared_and_shown(run, usual):
    printed, _, status = run(*usual, "--count", 30, "--versus", "fcfs", "--json")
    record = json.loads(printed)

    assert status == 0
    assert set(record) == {"runs", "ratio"}
    assert list(record["runs"]) == ["kairos", "fcfs"]
    kairos, fcfs = record["runs"].values()
    assert record["ratio"]["e2e_s"]["mean"] == kairos["e2e_s"]["mean"] / fcfs["e2e_s"]["mean"]
    assert kairos["arrivals"] == fcfs["arrivals"]

    shown, _, _ = run(*usual, "--count", 30, "--versus", "fcfs")
    assert "ratio" in shown
    assert "kairos, seed 1: 30 workflows" in shown
    assert "fcfs, seed 1: 30 workflows" in shown


def test_several_seeds_give_means_with_intervals_and_paired_differences(run, usual):
    options = ("--count", 20, "--seed", 3, "--seeds", 3, "--versus", "fcfs")
    printed, _, _ = run(*usual, *options, "--json")
    record = json.loads(printed)
    singles = [
        json.loads(run(*usual, "--count", 20, "--seed", seed, "--json")[0]) for seed in (3, 4, 5)
    ]

    assert record["seeds"] == [3, 4, 5]
    means = [single["e2e_s"]["mean"] for single in singles]
    kairos, fcfs = (record["intervals"][policy]["e2e_s"]["mean"] for policy in ("kairos", "fcfs"))
    assert kairos["mean"] == pytest.approx(sum(means) / 3)
    assert record["runs"]["kairos"]["e2e_s"]["mean"] == pytest.approx(kairos["mean"])
    assert min(means) - 1e-9 <= kairos["low"] <= kairos["mean"]
    assert kairos["mean"] <= kairos["high"] <= max(means) + 1e-9
    difference = record["difference"]["e2e_s"]["mean"]
    assert difference["mean"] == pytest.approx(kairos["mean"] - fcfs["mean"])

    shown, _, _ = run(*usual, *options)
    assert "means over 3 seeds" in shown
    assert "difference" in shown


async def test_ctrl_c_prints_what_has_ended_and_leaves_with_130(usual, tmp_path):
    log = tmp_path / "log"
    process = await started(*usual, "--count", 6000, "--rate", 2, "--log", log, "--json")
    async with asyncio.timeout(LIMIT_S):
        while sum(file.stat().st_size for file in log.glob("*")) == 0:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed, errors = await process.communicate()

    assert process.returncode == 130
    record = json.loads(printed)
    assert 0 < record["workflows"] < 6000
    assert record["slowdown"]["mean"] >= 1
    ended = f"{record['workflows']} of 6000 workflows had ended"
    assert f"kairos: interrupted; {ended}" in errors.decode()


def simulated(engine, count, seeds=(1,), policies=("fcfs",), kind=Simulation, **options):
    """A simulation of what was recorded, on two instances of the engine."""
    load = Load(workflows=RECORDED, rate_per_s=3.0, count=count)
    plan = planner(offered_workload(load), 2, str(engine))
    return kind(plan, [*seeds], [*policies], "least-kv", **options)


async def test_ctrl_c_ends_at_once_before_the_first_run_has_begun(engine):
    asked = []

    class Watched(Simulation):
        def _not_interrupted(self, submission):
            asked.append(submission)
            if len(asked) == 3:
                self.interrupt()
            return super()._not_interrupted(submission)

    simulation = simulated(engine, 40, kind=Watched)
    simulation.run()

    assert len(asked) == 3
    assert (simulation.done, simulation.world, simulation.workflows) == (0, None, 40)


def test_a_first_run_of_several_that_is_interrupted_is_told_as_what_it_is(run, usual, monkeypatch):
    plain = Simulation.__init__

    def interrupted(self, *arguments, **options):
        def interrupt(_):
            if self.world.clock.now() > 9 * SECOND:
                self.interrupt()

        plain(self, *arguments, **{**options, "on_second": interrupt})

    monkeypatch.setattr(Simulation, "__init__", interrupted)
    printed, errors, status = run(*usual, "--count", 40, "--versus", "fcfs", "--json")
    record = json.loads(printed)

    assert status == 130
    assert list(record["runs"]) == ["kairos"]
    ended = record["runs"]["kairos"]["workflows"]
    assert 0 < ended < 40
    assert f"interrupted; {ended} of 40 workflows had ended" in errors


def test_a_log_that_cannot_be_written_whole_is_told_beside_the_figures(
    run, usual, tmp_path, monkeypatch
):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FactLog, "_write", full)
    log = tmp_path / "log"
    printed, errors, status = run(*usual, "--count", 5, "--log", log, "--json")

    assert json.loads(printed)["workflows"] == 5
    assert status == 1
    assert f"the log in {log} is not whole" in errors


def test_of_the_only_run_what_had_ended_counts(engine):
    def interrupt(simulation):
        if simulation.world.clock.now() > 9 * SECOND:
            simulation.interrupt()

    simulation = simulated(engine, 40, on_second=interrupt)
    simulation.run()

    world, record = simulation.world, simulation.summarise()
    assert world.clock.now() == 10 * SECOND
    assert record["workflows"] == 40 - world.users.left == len(world.metrics.ended)
    assert 0 < record["workflows"] < 40


def test_workflows_that_failed_are_counted_and_have_no_slowdown(engine):
    load_ = Load(workflows=RECORDED, rate_per_s=3.0, count=10)
    plan = planner(offered_workload(load_), 1, str(engine))(1)
    gone = [WorldEvent(at_us=SECOND, what="fail", instance_id="engine-0")]
    simulation = Simulation(
        lambda _: msgspec.structs.replace(plan, happenings=gone), [1], ["fcfs"], "least-kv"
    )
    simulation.run()
    record = simulation.summarise()

    assert (record["failed"], record["slowdown"]["worst"]) == (10, None)
    assert (record["workflows"], record["e2e_s"]["mean"]) == (0, None)
    assert record["wasted_tokens"] > 0
    assert record["retries"] == 20


@pytest.mark.parametrize(("policies", "complete"), [(["kairos"], 2), (["kairos", "fcfs"], 5)])
def test_a_later_run_that_is_interrupted_does_not_count(engine, policies, complete):
    def interrupt(simulation):
        if simulation.done == complete and simulation.world.clock.now() > 5 * SECOND:
            simulation.interrupt()

    simulation = simulated(engine, 20, range(1, 9), policies, on_second=interrupt)
    simulation.run()
    record = simulation.summarise()

    assert simulation.is_interrupted
    assert simulation.done == complete
    assert record["seeds"] == [1, 2]
    whole = record if len(policies) == 1 else record["runs"]["kairos"]
    assert whole["workflows"] == 20
    # Of two policies the same seeds are compared: the third's run is there of one of them only.
    means = [run["e2e_s"]["mean"] for run in simulation.results["kairos"][:2]]
    assert whole["e2e_s"]["mean"] == sum(means) / 2


def test_of_seeds_of_which_one_is_complete_there_are_no_intervals(engine):
    def interrupt(simulation):
        if simulation.done == 3:
            simulation.interrupt()

    simulation = simulated(engine, 20, range(1, 9), ("kairos", "fcfs"), on_second=interrupt)
    simulation.run()
    record = simulation.summarise()

    assert simulation.done == 3
    assert set(record) == {"runs", "ratio"}
    assert record["runs"]["kairos"] == simulation.results["kairos"][0]


def test_a_comparison_of_which_one_run_is_complete_shows_that_one(run, usual, monkeypatch):
    after_one = property(lambda self: self.done == 1, lambda *_: None)
    monkeypatch.setattr(Simulation, "is_interrupted", after_one, raising=False)
    printed, errors, status = run(*usual, "--count", 20, "--versus", "fcfs")

    assert status == 130
    assert "kairos, seed 1: 20 workflows" in printed
    assert "fcfs" not in printed
    assert "1 of 2 runs had ended" in errors


LINES = (
    '{"workflow_id": "w", "app": "x", "agent": "a", "upstream": "user", "call_index": 0, '
    '"prompt_tokens": 5, "completion_tokens": 5}\n'
    '{"workflow_id": "w", "app": "x", "agent": "b", "upstream": "a", "call_index": 1, '
    '"prompt_tokens": 9, "completion_tokens": 10}\n'
)


def changed(right, wrong):
    assert right in LINES
    return LINES.replace(right, wrong).encode()


TRACE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
BROKEN = {
    "a negative length": (changed('"completion_tokens": 10', '"completion_tokens": -1'), ":2:"),
    "a missing field": (changed('"agent": "b", ', ""), ":2:"),
    "an unknown upstream": (changed('"upstream": "a"', '"upstream": "nobody"'), ":2:"),
    "an index that descends": (changed('"call_index": 1', '"call_index": 0'), ":2:"),
    "a file that breaks off": (gzip.compress(LINES.encode() * 500, mtime=0)[:-40], ""),
    "a trace with a word": (TRACE + b"2023-11-16 18:01:00,5,x\n", ":2:"),
    "a trace without tokens": (TRACE + b"2023-11-16,5,1\n2023-11-17,5,0\n", ":3:"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_of_workflows_or_trace_is_refused_with_its_line(run, what, tmp_path):
    content, line = BROKEN[what]
    path = tmp_path / "broken"
    path.write_bytes(content)

    printed, errors, status = run("--workflows", path)

    assert (printed, status) == ("", 1)
    assert errors.startswith(f"kairos: {path}{line}")


def test_a_call_that_fits_no_instance_is_refused_with_the_numbers_and_the_way_out(
    run, engine, tmp_path
):
    path = tmp_path / "long.jsonl"
    path.write_text(LINES.replace('"prompt_tokens": 9', '"prompt_tokens": 9000'))
    options = ("--workflows", path, "--profile", engine)

    _, errors, status = run(*options)
    assert status == 1
    for said in ("9000 + 10 = 9010 tokens", "takes 4000", "--max-context 4000"):
        assert said in errors

    _, _, status = run(*options, "--max-context", 4000)
    assert status == 0


def test_a_scenario_with_failures_runs_to_its_end(run, tmp_path, engine):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        f"""
        workflows = 40
        policy = "fcfs"
        arrivals = {{ rate_per_s = 4, process = "poisson" }}
        apps = [{{ app = "{RECORDED}" }}]
        instances = [{{ profile = "{engine}", count = 3 }}]
        events = [
            {{ at_s = 2, what = "fail", instance = 0 }},
            {{ at_s = 3, what = "slow", instance = 1, factor = 4.0 }},
            {{ at_s = 4, what = "join", instance = 2 }},
            {{ at_s = 6, what = "recover", instance = 0 }},
        ]
        """
    )
    printed, _, status = run("--scenario", scenario, "--json")
    record = json.loads(printed)

    assert status == 0
    assert record["workflows"] + record["failed"] == 40
    assert record["retries"] > 0
    assert run("--scenario", scenario, "--json") == (printed, "", 0)
    other, _, _ = run("--scenario", scenario, "--policy", "kairos", "--json")
    assert other != printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--workflows FILE, or --scenario FILE"),
        (("--workflows", RECORDED, "--policy", "none"), "there is no policy 'none'"),
        (("--workflows", RECORDED, "--versus", "kairos"), "compares it with itself"),
        (("--workflows", RECORDED, "--placement", "none"), "there is no placement 'none'"),
        (("--workflows", RECORDED, "--profile", "none"), "there is no profile 'none'"),
        (("--workflows", RECORDED, "--arrivals", "none"), "no arrivals are called 'none'"),
        (("--workflows", RECORDED, "--rate", "0"), "the rate must be above 0"),
        (("--scenario", "x.toml", "--workflows", RECORDED), "leave out --workflows"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_do(run, arguments, says):
    printed, errors, status = run(*arguments)

    assert (printed, status) == ("", 1)
    assert errors.startswith("kairos: ")
    assert says in errors
