"""H5: `kairos run --host`: flows of two models on one device, with engines that Kairos starts."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.core import SetupError
from kairos.workflows import Functions
from tests.e2e.cli.flow_runs import read_rows, write_rows
from tests.support.vllm import needs_vllm
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import (
    HostedEngine,
    RunStore,
    check_task,
    new_record,
    read_profile,
    run_task,
    serve_by,
)

FLOW = """
flow: review
defaults: {max_tokens: 8, on_cut: keep}
operators:
  row: {kind: input}
  draft: {kind: llm, model: small, prompt: "{{ row.text }}?"}
  style: {kind: llm, model: small, prompt: "{{ row.text }} style"}
  check: {kind: llm, model: large, prompt: "{{ draft }} {{ row.text }}", retries: 2}
  last: {kind: llm, model: small, prompt: "{{ check }} {{ style }}"}
outputs: {id: row.text, answer: last}
"""
HOST = """
devices = DEVICES
[models.small]
engine = "llama"
options = [SMALL]
profile = "cpu-tiny"
load_s = 2
[models.large]
engine = "llama"
options = [LARGE]
profile = "cpu-tiny"
load_s = 2
"""
STANDINS = {"llama": HostedEngine("kairos.simulate.standin.server", "--model")}
ROWS = [{"text": f"text {n}"} for n in range(40)]


class Hosted:
    """Runs on devices, with what they say of it."""

    def __init__(self, directory):
        self.directory = directory
        self.store, self.notes = RunStore(directory / "kairos"), []

    async def run(
        self, rows, *, devices=1, small='"--instant"', large='"--instant"', flow=FLOW, kind="llama"
    ):
        text = HOST.replace("DEVICES", str(devices)).replace("SMALL", small).replace("llama", kind)
        (self.directory / "host.toml").write_text(text.replace("LARGE", large))
        out = self.directory / f"{len(list(self.directory.iterdir()))}.jsonl"
        declaration = read_yaml(flow)
        record = new_record(
            self.store, declaration, out=str(out), host=str(self.directory / "host.toml")
        )
        table = write_rows(self.directory / "rows.jsonl", rows)
        task = check_task(record, declaration, Functions(), table)
        record = await run_task(task, self.store, self.notes.append, lambda _: None)
        return record, read_rows(out)

    @property
    def loaded(self):
        return [
            (int(note.split()[1].rstrip(":")), note.split()[2])
            for note in self.notes
            if "serves after" in note
        ]


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    serve_by(STANDINS, monkeypatch)
    return Hosted(tmp_path)


def children():
    """Processes that we started and that are there."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = each.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and words[0] != "Z":
            found.append(int(each.parent.name))
    return found


@pytest.mark.usefixtures("forks")
async def test_h5_models_take_turns_on_one_device_phase_by_phase(hosted):
    before = children()
    record, rows = await hosted.run(ROWS)
    assert record.state == "done"
    assert [each["id"] for each in rows] == [each["text"] for each in ROWS]
    # draft and style, then check, then last: the optimum loads thrice, and so does the run.
    assert hosted.loaded == [(1, "small"), (1, "large"), (1, "small")]
    assert record.figures["calls"] >= 3 * len(ROWS)
    assert set(children()) == set(before)


@pytest.mark.usefixtures("forks")
async def test_with_a_device_for_each_model_nothing_is_switched(hosted):
    record, rows = await hosted.run(ROWS, devices=2)
    assert record.state == "done"
    assert len(rows) == len(ROWS)
    assert sorted(hosted.loaded) == [(1, "small"), (2, "large")] or sorted(hosted.loaded) == [
        (1, "large"),
        (2, "small"),
    ]


@pytest.mark.usefixtures("forks")
def test_the_command_places_by_what_was_learnt_of_the_flow_and_keeps_it_for_resuming(
    hosted, tmp_path
):
    (tmp_path / "f.yaml").write_text(FLOW)
    (tmp_path / "host.toml").write_text(
        HOST.replace("DEVICES", "2").replace("SMALL", '"--instant"').replace("LARGE", '"--instant"')
    )
    table = write_rows(tmp_path / "rows.jsonl", ROWS)
    flow = [str(tmp_path / "f.yaml"), "--inputs", str(table)]
    profiled = CliRunner().invoke(app, ["profile", *flow, "--simulate", "cpu-tiny"])
    assert profiled.exit_code == 0, profiled.output
    where = ["--host", str(tmp_path / "host.toml"), "--dir", str(hosted.directory / "kairos")]
    ran = CliRunner().invoke(app, ["run", *flow, "--out", str(tmp_path / "out.jsonl"), *where])
    assert ran.exit_code == 0, ran.output
    [(_, record)] = hosted.store.all()
    assert record.learnt == read_profile(tmp_path / "f.profile.json")


async def test_an_engine_that_is_killed_ends_the_run_which_goes_on_when_it_is_resumed(hosted):
    before = set(children())

    async def kill_one():
        while not hosted.loaded:
            await asyncio.sleep(0.02)
        [engine] = set(children()) - before
        os.killpg(engine, signal.SIGKILL)

    killing = asyncio.create_task(kill_one())
    with pytest.raises(SetupError, match=r"llama with small on device 1 has ended: .*runs resume"):
        await hosted.run(ROWS, small='"--step-ms", "200"')
    await killing
    assert set(children()) == before


async def test_an_engine_that_cannot_start_ends_the_run_with_what_it_said(hosted):
    before = children()
    with pytest.raises(SetupError, match=r"(?s)llama with small on device 1 .*no-such-option"):
        await hosted.run(ROWS, small='"--no-such-option"')
    assert set(children()) == set(before)
    record = hosted.store.all()[0][1]
    assert record.state == "running"  # as after a crash: it can be resumed


async def test_a_model_that_the_host_does_not_have_is_refused_before_anything_starts(hosted):
    with pytest.raises(SetupError, match="model 'other', and the host file knows small, large"):
        await hosted.run(ROWS, flow=FLOW.replace("model: large", "model: other"))
    with pytest.raises(SetupError, match="no row"):
        await hosted.run([])
    assert hosted.notes == []


@pytest.mark.real
async def test_h5_two_real_llama_cpp_take_turns_on_one_device(tmp_path):
    hosted = Hosted(tmp_path)
    record, rows = await hosted.run(
        ROWS[:6],
        small='"--slots", "4", "--context", "4096"',
        large='"--slots", "2", "--context", "2048"',
    )
    assert (record.state, record.figures.get("failed", 0)) == ("done", 0)
    assert all(each["answer"] for each in rows)
    assert hosted.loaded == [(1, "small"), (1, "large"), (1, "small")]


@pytest.mark.acceptance
@pytest.mark.timeout(600)
async def test_h5_two_real_vllm_take_turns_on_one_device(tmp_path):
    """Each is started, serves its phase of the flow, and has ended before the next begins."""
    needs_vllm()
    hosted, before = Hosted(tmp_path), children()
    record, rows = await hosted.run(
        ROWS[:6], kind="vllm", small='"--model", "tiny"', large='"--model", "small"'
    )
    assert (record.state, record.figures.get("failed", 0)) == ("done", 0)
    assert [each["id"] for each in rows] == [each["text"] for each in ROWS[:6]]
    assert all(each["answer"] for each in rows)
    assert hosted.loaded == [(1, "small"), (1, "large"), (1, "small")]
    assert set(children()) == set(before)
