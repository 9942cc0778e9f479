"""What becomes of a decision: engines that come, go, fail, and come back."""

import pytest

from kairos.capacity import autoscale
from kairos.capacity.autoscale import PoolScaler, SeenInstance, SeenWork
from kairos.capacity.autoscaling import ScalingRules
from kairos.capacity.scaled_engines import (
    CommandEngines,
    EngineCommands,
    ScalingFile,
    engines_of,
    read_scaling_file,
)
from kairos.core import InvalidFile, Look, SetupError
from tests.support.core.demand import OpenWork

FIRST = "http://first:8000"


class FakePool:
    """A pool whose instances and calls a test sets."""

    def __init__(self):
        self.calls, self.at_s, self.down = 0, 0.0, False
        self.states = {FIRST: "in_use"}
        self.phases = {}
        self.told = []

    def read_work(self):
        if self.down:
            raise SetupError("http://pool: refused")
        work = [OpenWork(self.calls, self.calls, 1e6)] if self.calls else []
        return SeenWork(True, 0, Look(at_s=self.at_s, begun=0, open_work=work, running=0))

    def read_instances(self):
        return {
            url: SeenInstance(
                *(url.removeprefix("http://"), url, state, 0, url == FIRST),
                phase=self.phases.get(url, "both"),
            )
            for url, state in self.states.items()
        }

    def add_engine(self, url, engine):
        self.told.append(("add", url, engine))
        self.states[url] = "not_in_use"

    def drain_engine(self, instance_id):
        self.told.append(("drain", instance_id))
        self.states[f"http://{instance_id}"] = "draining"


class FakeEngines:
    def __init__(self):
        self.started, self.stopped, self.why = [], [], {}
        self.stuck, self.known = False, []

    def stoppable(self, known):
        return []

    def start(self, known):
        self.known = list(known)
        self.started.append(f"http://e{len(self.started)}:8000")
        return self.started[-1]

    def why_failed(self, url):
        return self.why.get(url)

    def stop(self, url):
        if self.stuck:
            raise SetupError("commands.stop did not end in 60 s")
        self.stopped.append(url)


class Scaled:
    def __init__(self, **given):
        self.pool, self.engines, self.said = FakePool(), FakeEngines(), []
        rules = ScalingRules(least=1, most=3, start_s=1, calm_s=30, utilisation=1, seats=1)
        file = ScalingFile(pool=rules, ready_s=60, engine={"max_num_seqs": 4}, **given)
        self.scaler = PoolScaler(self.pool, file, self.engines, self.said.append)

    def step(self, calls, later_s=10.0):
        self.pool.calls = calls
        self.pool.at_s += later_s
        return self.scaler.step(self.pool.at_s)


@pytest.fixture
def scaled(monkeypatch):
    answering = set()
    monkeypatch.setattr(autoscale, "_answers", answering.__contains__)
    made = Scaled()
    made.answering = answering
    return made


def serving(scaled, number=0):
    """One that was started answers, is added, and is used."""
    url = scaled.engines.started[number]
    scaled.answering.add(url)
    scaled.step(scaled.pool.calls)
    scaled.pool.states[url] = "in_use"
    return url


def stuck(scaled):
    """One has drained, and nobody can stop it."""
    scaled.step(2)
    url = serving(scaled)
    scaled.engines.stuck = True
    for _ in range(12):
        scaled.step(0)
    del scaled.pool.states[url]
    return url


def test_one_that_cannot_be_stopped_for_long_is_left_to_the_operator(scaled):
    url = stuck(scaled)
    scaled.step(0, later_s=1)
    scaled.step(0, later_s=600)
    assert any(f"{url} could not be stopped for 600 s" in each for each in scaled.said)
    scaled.engines.stuck = False
    scaled.step(0)
    assert scaled.engines.stopped == []
    for _ in range(8):
        scaled.step(3)
    assert url in scaled.engines.known


def test_one_that_failed_is_not_used_again_while_it_drains(scaled):
    scaled.step(2)
    url = scaled.engines.started[0]
    scaled.answering.add(url)
    scaled.step(2)
    scaled.engines.why[url] = "its process ended with status 1"
    for _ in range(6):
        scaled.step(2)
    assert scaled.pool.told == [("add", url, {"max_num_seqs": 4}), ("drain", "e0:8000")]
    assert len(scaled.engines.started) == 2


def test_one_that_drains_is_used_again_rather_than_another_started(scaled):
    scaled.step(2)
    url = serving(scaled)
    for _ in range(12):
        scaled.step(0)
    for _ in range(4):
        scaled.step(2)
    assert scaled.pool.told[-1] == ("add", url, {"max_num_seqs": 4})
    assert len(scaled.engines.started) == 1


def test_no_engine_is_drained_twice(scaled):
    scaled.step(3)
    for number in range(2):
        serving(scaled, number)
    for _ in range(12):
        scaled.step(0)
    drained = [told[1] for told in scaled.pool.told if told[0] == "drain"]
    assert drained == ["e1:8000", "e0:8000"]  # the last first


def test_after_one_that_failed_none_is_started_for_a_while(scaled):
    scaled.step(2)
    scaled.engines.why[scaled.engines.started[0]] = "its process ended with status 1"
    scaled.step(2)
    scaled.step(2)
    assert len(scaled.engines.started) == 1
    assert scaled.engines.stopped == scaled.engines.started
    assert any("ended with status 1" in each for each in scaled.said)
    for _ in range(4):
        scaled.step(2)
    assert len(scaled.engines.started) == 2


def test_engines_that_others_started_are_never_drained(scaled):
    scaled.pool.states["http://second:8000"] = "in_use"
    for _ in range(12):
        scaled.step(0)
    assert scaled.pool.told == []
    assert any("no engine is drained" in each for each in scaled.said)


def test_a_pool_that_does_not_answer_is_left_as_it_is(scaled):
    scaled.step(2)
    scaled.pool.down = True
    assert scaled.step(50) is None
    assert "nothing is changed" in scaled.said[-1]
    assert len(scaled.engines.started) == 1


def test_commands_are_arguments_that_no_shell_reads(tmp_path):
    marker = tmp_path / "made by a shell"
    commands = EngineCommands(
        start=["echo", "{port}", f"; touch '{marker}'"],
        url="http://127.0.0.1:{port}",
        ports=(9001, 9002),
        log=str(tmp_path),
    )
    engines = CommandEngines(commands)
    assert engines.start(["http://127.0.0.1:9001"]) == "http://127.0.0.1:9002"
    engines._processes["http://127.0.0.1:9002"].wait()
    engines.stop("http://127.0.0.1:9002")
    assert (tmp_path / "9002.log").read_text() == f"9002 ; touch '{marker}'\n"
    assert not marker.exists()


def test_a_program_that_is_not_there_is_named():
    engines = CommandEngines(
        EngineCommands(start=["/no/such"], url="http://h:{port}", ports=(9001, 9001))
    )
    with pytest.raises(SetupError, match="/no/such cannot be started"):
        engines.start([])


def test_a_process_that_has_ended_has_failed():
    engines = CommandEngines(
        EngineCommands(start=["false"], url="http://h:{port}", ports=(9001, 9001))
    )
    url = engines.start([])
    engines._processes[url].wait()
    assert engines.why_failed(url) == "its process ended with status 1"


def test_a_command_that_stops_engines_is_run_and_adopts_those_of_before(tmp_path):
    engines = CommandEngines(
        EngineCommands(
            start=["true"],
            stop=["touch", f"{tmp_path}/{{port}}"],
            url="http://h:{port}",
            ports=(9001, 9003),
        )
    )
    assert engines.stoppable(["http://h:9002", "http://x:1"]) == ["http://h:9002"]
    engines.stop("http://h:9002")
    assert (tmp_path / "9002").exists()


def test_a_port_whose_engine_could_not_be_stopped_stays_taken():
    engines = CommandEngines(
        EngineCommands(start=["true"], stop=["false"], url="http://h:{port}", ports=(9001, 9001))
    )
    url = engines.start([])
    engines._processes[url].wait()
    with pytest.raises(SetupError, match="status 1"):
        engines.stop(url)
    with pytest.raises(SetupError, match=r"commands\.ports"):
        engines.start([])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[pool]\nleast = 0", "least"),
        ("every_s = 0", "every_s"),
        ("ready_s = 1e9", "ready_s"),
        ("stop_s = 0", "stop_s"),
        ("engine = {phase = 'prefill'}", "generate answers"),
        ("[commands]\nstart = []\nurl = 'http://h:{port}'\nports = [1, 2]", "start"),
        ("[commands]\nstart = ['x']\nurl = 'http://h:1'\nports = [1, 2]", "port"),
        ("[commands]\nstart = ['x']\nurl = 'http://h:{port}'\nports = [2, 1]", "ports"),
        ("[commands]\nstart = 'x; y'\nurl = 'http://h:{port}'\nports = [1, 2]", "start"),
        ("nonsense = 1", "nonsense"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, text, named):
    path = tmp_path / "scaling.toml"
    path.write_text(text)
    with pytest.raises((SetupError, InvalidFile), match=named):
        read_scaling_file(path)


def test_without_a_way_to_start_engines_there_are_none(tmp_path):
    path = tmp_path / "scaling.toml"
    path.write_text("[pool]\nmost = 3\n")
    assert engines_of(read_scaling_file(path)) is None
