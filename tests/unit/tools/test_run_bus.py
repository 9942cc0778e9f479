import asyncio
from unittest.mock import AsyncMock

import msgspec
import pytest

from kairos.errors import SetupError
from kairos.live.runs.run_places import RunPlaces
from kairos.live.runs.run_store import RunRecord, RunStore
from kairos.retrieval_settings import RetrievalSettings
from kairos.tools import run_bus
from kairos.tools.run_bus import find_run, run_cluster, run_topic, stand_by, tell_cancelled


def record(name="chain-1", **fields):
    return RunRecord(id=name, flow="chain", out="out.jsonl", created_at=1, changed_at=1, **fields)


def test_a_run_that_was_begun_without_a_bus_is_found_here_and_has_none(tmp_path):
    store = RunStore(tmp_path)
    store.create(record())
    directory, found = find_run(store, "chain", None, None, {})
    assert (directory.path.name, found) == ("chain-1", record())
    assert asyncio.run(run_topic(found, {})) is None
    tell_cancelled(found, {})  # there is nobody to be told


def test_its_journal_cannot_move_to_a_bus(tmp_path):
    store = RunStore(tmp_path)
    store.create(record())
    with pytest.raises(SetupError, match="begun without --bus: its journal is here alone"):
        find_run(store, "chain-1", "kafka://localhost:9", None, {})


def test_a_run_that_is_nowhere_is_not_found(tmp_path):
    with pytest.raises(SetupError, match="no run is called 'chain-1'"):
        find_run(RunStore(tmp_path), "chain-1", None, None, {})


@pytest.mark.parametrize("name", ["../chain", "a/b", "", ".", "x" * 65])
def test_a_run_that_a_bus_tells_of_gets_no_directory_elsewhere(tmp_path, name):
    with pytest.raises(SetupError, match="no run can be called"):
        RunStore(tmp_path).create(record(name))


@pytest.mark.parametrize(
    ("bus", "said"),
    [("memory", "leave it out"), ("http://x", "kafka://HOST"), ("kafka://u:p@h:1", r"\[kafka\]")],
)
def test_what_is_no_kafka_is_refused(bus, said):
    with pytest.raises(SetupError, match=said):
        run_cluster(bus, None, {})


def test_the_file_of_settings_says_how_to_be_let_in(tmp_path):
    path = tmp_path / "kairos.toml"
    path.write_text('[kafka]\n"security.protocol" = "ssl"\n')
    assert run_cluster("kafka://h:1", str(path), {}).options == {"security.protocol": "ssl"}


BUS = "kafka://localhost:9"
THEIRS = {
    "flow_path": "/tmp/theirs.py", "functions_path": "/tmp/f.py", "inputs": "/etc/passwd",
    "values": "/tmp/values", "api_key_env": "SECRET", "bus_config": "/tmp/k.toml",
    "retrieval": RetrievalSettings(embedders=("http://evil:1,api_key_env=SECRET",)),
}  # fmt: skip
OURS = {
    "flow_path": "/srv/flow.yaml", "functions_path": "/srv/f.py", "inputs": "/srv/rows.jsonl",
    "out": "/srv/out.jsonl", "values": "/srv/values",
    "retrieval": RetrievalSettings(embedders=("http://gpu2:1",)),
}  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    """What Kafka tells of the run."""
    monkeypatch.setattr(run_bus, "ensure", AsyncMock())

    def tell(**fields):
        record_of_theirs = record(**{"engines": ("http://evil:1",)} | THEIRS | fields)
        data = msgspec.json.encode(record_of_theirs)
        monkeypatch.setattr(run_bus, "latest_record", lambda *_: data)
        return record_of_theirs

    return tell


def test_a_host_that_goes_on_takes_no_file_engine_or_key_from_kafka(tmp_path, told):
    theirs = told(written={"/etc/passwd": (1, 1)}, revision="r2")
    places = RunPlaces(**OURS, url="http://kairos:1", api_key_env="OURS")
    directory, found = find_run(RunStore(tmp_path), "chain-1", BUS, None, {}, places)
    said = {**OURS, "url": "http://kairos:1", "api_key_env": "OURS", "engines": ()}
    rest = {"bus": BUS, "bus_config": None, "written": {}}
    assert found == msgspec.structs.replace(theirs, **said, **rest)
    assert directory.read() == found  # where it is trusted from now on


@pytest.mark.parametrize("theirs", [{}, {"engines": (), "url": "x"}, {"engines": (), "host": "x"}])
def test_what_the_command_does_not_name_is_asked_for_and_nothing_is_kept(tmp_path, told, theirs):
    told(**theirs)
    store = RunStore(tmp_path)
    options = (
        "--flow, --functions, --inputs, --out, --values, --engine (or --url, or --host), --embedder"
    )
    for places in (RunPlaces(), RunPlaces(api_key_env="KEY")):
        with pytest.raises(SetupError) as refused:
            find_run(store, "chain-1", BUS, None, {}, places)
        assert str(refused.value).endswith(f"name it with {options}")
    most = RunPlaces(**{**OURS, "out": None}, engines=("http://gpu1:1",))
    with pytest.raises(SetupError, match="name it with --out"):
        find_run(store, "chain-1", BUS, None, {}, most)
    assert store.having("chain-1") is None


def test_processors_stand_for_all_that_retrieval_needs(tmp_path, told):
    theirs = RetrievalSettings(processors=("http://theirs:1",))
    told(retrieval=theirs)
    places = RunPlaces(**{**OURS, "retrieval": None}, url="http://kairos:1")
    with pytest.raises(SetupError, match=r"name it with --processor$"):
        find_run(RunStore(tmp_path), "chain-1", BUS, None, {}, places)
    told()
    ours = RetrievalSettings(processors=("http://ours:1",))
    places = msgspec.structs.replace(places, retrieval=ours)
    _, found = find_run(RunStore(tmp_path), "chain-1", BUS, None, {}, places)
    assert found.retrieval == ours


def test_a_host_that_stands_by_is_told_at_once_what_it_must_name(tmp_path, told):
    told()
    with pytest.raises(SetupError, match="name it with --flow"):
        stand_by(RunStore(tmp_path), "chain-1", BUS, None, {}, RunPlaces())


def test_a_program_says_all_of_it_itself_so_nothing_of_it_is_taken(tmp_path, told):
    told()
    _, found = find_run(RunStore(tmp_path), "chain-1", BUS, None, {})
    assert (found.flow_path, found.inputs, found.out, found.engines) == (None, None, "", ())
    assert (found.api_key_env, found.retrieval, found.values) == (None, None, None)


def test_a_run_of_this_host_keeps_its_places_but_for_those_that_are_named(tmp_path):
    store = RunStore(tmp_path)
    here = record(flow_path="/srv/flow.yaml", engines=("http://gpu1:1",), api_key_env="OURS")
    store.create(here)
    places = RunPlaces(inputs="/srv/rows.jsonl")
    _, found = find_run(store, "chain-1", None, None, {}, places)
    assert found == msgspec.structs.replace(here, inputs="/srv/rows.jsonl")
    _, found = find_run(store, "chain-1", None, None, {}, RunPlaces(url="http://kairos:1"))
    moved = {"engines": (), "url": "http://kairos:1", "api_key_env": None}
    assert found == msgspec.structs.replace(here, **moved)


def test_a_run_with_a_pass_that_is_not_known_here_is_refused(tmp_path, told):
    told(passes={"prune": False, "theirs": True})
    with pytest.raises(SetupError, match=r"passes that are not known here: theirs$"):
        find_run(RunStore(tmp_path), "chain-1", BUS, None, {}, RunPlaces(**OURS, url="http://u:1"))
