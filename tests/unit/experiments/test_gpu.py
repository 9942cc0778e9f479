"""Runs on a GPU, without one: what is made in the time there is, and what is made of it."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from experiments import e31_gpu, gpu, gpu_run
from experiments.e29_live import Side
from experiments.e31_gpu import COMPARED, Row
from experiments.report import write_rows
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import SetupError
from kairos.model import SECOND
from kairos.scheduler.policies import POLICIES
from kairos.sim.engine import profiles
from kairos.sim.engine.profiles import profile
from kairos.sim.world import World

CPU = gpu_run.setting(None, shared=True)
RUN_S, START_S, CALIBRATE_S, LEARN_S = 10.0, 20.0, 30.0, 10.0


def row(repetition=1, combination="kairos", mean=1.0, commit="c", device="CPU"):
    side = Side(e2e_s={"mean": mean}, s_per_token={"mean": mean}, preemptions_per_call=0.0)
    return Row(
        commit=commit,
        repetition=repetition,
        place=1,
        combination=combination,
        workflows=9,
        calls=20,
        measured=side,
        simulated=side,
        others_cores=0.0,
        profile=profile("cpu-tiny"),
        device=device,
        rate_per_s=1.0,
        max_context=512,
        elapsed_s=RUN_S,
    )


@pytest.fixture
def world(monkeypatch):
    """A machine in whose time only runs and preparations pass; `did` has what was done."""
    world = SimpleNamespace(now=1000.0, did=[], run_s=RUN_S)

    def passes(what, seconds):
        world.did.append(what)
        world.now += seconds

    @asynccontextmanager
    async def engines(*_):
        passes("start", START_S)
        yield ["http://one", "http://other"]

    async def calibrate(_urls, file, *_options):
        passes("calibrate", CALIBRATE_S)
        file.write_text(profiles.to_toml(profile("cpu-tiny")))

    class Pair:
        load = SimpleNamespace(workflows=9, rate_per_s=1.0)

        def __init__(self, *_):
            pass

        async def learn(self):
            passes("learn", LEARN_S)
            return b"learnt"

        async def run(self, learnt, at_commit, repetition, _place, name):
            assert learnt == b"learnt"
            passes((repetition, name), world.run_s)
            return row(repetition, name, commit=at_commit)

    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: world.now))
    monkeypatch.setattr(gpu, "engines", engines)
    monkeypatch.setattr(gpu, "calibrate", calibrate)
    monkeypatch.setattr(gpu, "Pair", Pair)
    return world


def play(world, directory, seconds, monkeypatch, repetitions=3):
    """One command. Returns how long it took."""
    began_at = world.now
    words = ["gpu", "play", "--cpu", "--commit=c", f"--into={directory}", f"--seconds={seconds}"]
    monkeypatch.setattr("sys.argv", [*words, f"--repetitions={repetitions}"])
    gpu.main()
    return world.now - began_at


def test_as_many_runs_are_made_as_end_in_time(world, tmp_path, monkeypatch):
    before = START_S + CALIBRATE_S + LEARN_S
    took = play(world, tmp_path, before + 4.5 * RUN_S + gpu.END_S, monkeypatch)
    assert took == before + 4 * RUN_S
    assert world.did[:3] == ["start", "calibrate", "learn"]
    assert len((tmp_path / gpu.ROWS).read_bytes().splitlines()) == 4


def test_a_run_is_expected_to_take_as_long_as_the_longest_so_far(world, tmp_path, monkeypatch):
    world.run_s = 100.0
    before = START_S + CALIBRATE_S + LEARN_S
    took = play(world, tmp_path, before + 190.0 + gpu.END_S, monkeypatch)
    assert took == before + 100.0


def test_the_next_command_goes_on_and_prepares_nothing_again(world, tmp_path, monkeypatch):
    play(world, tmp_path, 110.0, monkeypatch)
    made = [each for each in world.did if isinstance(each, tuple)]
    assert 0 < len(made) < 9
    world.did.clear()
    play(world, tmp_path, 1000.0, monkeypatch)
    assert world.did[0] == "start"
    made += world.did[1:]
    assert sorted(made) == sorted((n, name) for n in (1, 2, 3) for name in COMPARED)
    assert [number for number, _ in made] == [1] * 3 + [2] * 3 + [3] * 3

    world.did.clear()
    play(world, tmp_path, 1000.0, monkeypatch)
    assert world.did == [], "engines were started for nothing"


def test_the_order_of_a_repetition_is_the_same_where_it_was_broken_off():
    whole = gpu.to_make([], 5)
    for count in range(len(whole)):
        rows = [row(repetition, name) for repetition, _, name in whole[:count]]
        assert gpu.to_make(rows, 5) == whole[count:]
    assert len({tuple(name for n, _, name in whole if n == number) for number in range(1, 6)}) > 1


def test_a_run_that_does_not_end_costs_itself_alone(world, tmp_path, monkeypatch):
    class Hangs(gpu.Pair):
        async def run(self, *arguments):
            if len(world.did) == 5:
                await asyncio.Event().wait()
            return await super().run(*arguments)

    monkeypatch.setattr(gpu, "Pair", Hangs)
    monkeypatch.setattr(gpu.Clock, "left_s", 0.2)
    monkeypatch.setattr(gpu.Clock, "has_room", True)
    play(world, tmp_path, 1000.0, monkeypatch)
    assert len((tmp_path / gpu.ROWS).read_bytes().splitlines()) == 2


@pytest.mark.parametrize("other", [{"commit": "d"}, {"device": "NVIDIA H200"}])
def test_rows_of_other_code_or_of_another_device_are_not_gone_on_with(tmp_path, other):
    write_rows(tmp_path / gpu.ROWS, [row(**other)])
    with pytest.raises(SetupError, match="name another --into"):
        gpu.Kept(tmp_path, "c", "CPU")


@pytest.mark.long
def test_engines_have_work_for_the_time_that_was_asked_for():
    on = msgspec.structs.replace(CPU, run_s=30.0, max_context=512)
    for engine in (profile("a40-llama3-8b"), profile("h200-llama3-8b")):
        few = msgspec.structs.replace(engine, max_num_seqs=8)
        offer = gpu_run.load(few, on)
        world = World(
            offer.of(1), {"a": few, "b": few}, POLICIES["fcfs"], PLACEMENTS["round-robin"]
        )
        world.run()
        lasted_s = max(each.ended_at for each in world.metrics.rows) / SECOND
        is_most = offer.workflows == gpu_run.MOST
        assert lasted_s < 1.7 * on.run_s
        assert is_most or lasted_s > 0.8 * on.run_s
        assert offer.workflows / offer.rate_per_s < lasted_s / 2, "there is no queue"


def test_only_whole_repetitions_count(tmp_path):
    rows = [row(1, name, mean) for name, mean in zip(COMPARED, (4.0, 3.0, 2.0), strict=True)]
    rows += [row(3, name) for name in COMPARED] + [row(2, "kairos", 100.0), row(4, "ayo", 100.0)]
    assert {each.repetition for each in e31_gpu.whole(rows)} == {1, 3}
    assert "2 repetitions of 9 workflows" in e31_gpu.section(rows)
    values = {each.name: each.value for each in e31_gpu.figures(rows)}
    assert values["real vLLM on a GPU, mean end to end, kairos over parrot"] == 0.75
    assert values["real vLLM on a GPU, mean per token, ayo over parrot"] == 0.875
    e31_gpu.draw(rows, tmp_path / "gpu")
    assert (tmp_path / "gpu.svg").exists()


def test_of_no_whole_repetition_nothing_follows(tmp_path):
    rows = [row(1, "kairos")]
    assert e31_gpu.section(rows) == "No repetition is whole yet."
    assert e31_gpu.figures(rows) == []
    e31_gpu.draw(rows, tmp_path / "gpu")
    assert not list(tmp_path.iterdir())


def test_two_that_share_a_gpu_have_less_than_half_of_it_each():
    shared = gpu_run.setting("NVIDIA H200", shared=True)
    alone = gpu_run.setting("NVIDIA H200", shared=False)
    assert shared.name == alone.name == "h200-llama3-8b"
    given = dict(each.split("=") for each in shared.options if "=" in each)
    share = float(given["--gpu-memory-utilization"])
    weights, total = 8.03e9 * 2, 143771 * 2**20
    assert share < 0.5
    assert weights + int(given["--kv-cache-memory-bytes"]) < share * total - 4 * 2**30
    assert "--gpu" in shared.options
    assert "--gpu" in alone.options


def test_a_machine_without_the_driver_has_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_run.gpu() is None
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    driver.chmod(0o755)
    assert gpu_run.gpu() == "NVIDIA H200"
    driver.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    assert gpu_run.gpu() is None
