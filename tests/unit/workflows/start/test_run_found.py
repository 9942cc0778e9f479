import msgspec
import pytest

from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows import RunPlaces, RunRecord
from kairos.workflows.run.run_store import RunStore
from kairos.workflows.start import run_found
from kairos.workflows.start.run_found import check_results, find_run

DATABASE = "postgresql://localhost:9/results"


def record(name="chain-1", **fields):
    return RunRecord(id=name, flow="chain", out="out.jsonl", created_at=1, changed_at=1, **fields)


def test_a_run_that_was_begun_without_a_database_is_found_here_and_has_none(tmp_path):
    store = RunStore(tmp_path)
    store.create(record())
    directory, found = find_run(store, "chain", None)
    assert (directory.path.name, found) == ("chain-1", record())


def test_its_results_cannot_move_to_a_database(tmp_path):
    store = RunStore(tmp_path)
    store.create(record())
    with pytest.raises(SetupError, match="begun without --results: they are here alone"):
        find_run(store, "chain-1", DATABASE)


def test_a_run_that_is_nowhere_is_not_found(tmp_path, monkeypatch):
    with pytest.raises(SetupError, match="no run is called 'chain-1'"):
        find_run(RunStore(tmp_path), "chain-1", None)
    monkeypatch.setattr(run_found, "read_postgres_record", lambda *_: None)
    with pytest.raises(SetupError, match="knows of no run 'chain-1'"):
        find_run(RunStore(tmp_path), "chain-1", DATABASE)


@pytest.mark.parametrize("name", ["../chain", "a/b", "", ".", "x" * 65])
def test_a_run_that_a_database_tells_of_gets_no_directory_elsewhere(tmp_path, name):
    with pytest.raises(SetupError, match="is not a valid id of a run"):
        RunStore(tmp_path).create(record(name))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"results": "sqlite:///x"}, "--results: write postgresql"),
        ({"results": "postgresql://h"}, "--results: write postgresql"),
        ({"results": "postgresql://u:secret@h/x"}, "PGPASSWORD"),
        ({"bus": "kafka://h:1"}, "no longer kept on Kafka"),
    ],
)
def test_what_no_results_can_be_in_is_refused(fields, said):
    with pytest.raises(SetupError) as refused:
        check_results(record(**fields))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


THEIRS = {
    "flow_path": "/tmp/theirs.py", "functions_path": "/tmp/f.py", "inputs": "/etc/passwd",
    "api_key_env": "SECRET",
    "retrieval": RetrievalSettings(embedders=("http://evil:1,api_key_env=SECRET",)),
}  # fmt: skip
OURS = {
    "flow_path": "/srv/flow.yaml", "functions_path": "/srv/f.py", "inputs": "/srv/rows.jsonl",
    "out": "/srv/out.jsonl",
    "retrieval": RetrievalSettings(embedders=("http://gpu2:1",)),
}  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    """Record of the run in the database."""

    def tell(**fields):
        record_of_theirs = record(**{"engines": ("http://evil:1",)} | THEIRS | fields)
        data = msgspec.json.encode(record_of_theirs)
        monkeypatch.setattr(run_found, "read_postgres_record", lambda *_: data)
        return record_of_theirs

    return tell


def test_a_host_that_goes_on_takes_no_file_engine_or_key_from_a_database(tmp_path, told):
    theirs = told(written={"/etc/passwd": (1, 1)}, revision="r2")
    places = RunPlaces(**OURS, url="http://kairos:1", api_key_env="OURS")
    directory, found = find_run(RunStore(tmp_path), "chain-1", DATABASE, places)
    said = {**OURS, "url": "http://kairos:1", "api_key_env": "OURS", "engines": ()}
    rest = {"results": DATABASE, "written": {}}
    assert found == msgspec.structs.replace(theirs, **said, **rest)
    assert directory.read() == found  # where it is trusted from now on


@pytest.mark.parametrize("theirs", [{}, {"engines": (), "url": "x"}, {"engines": (), "host": "x"}])
def test_what_the_command_does_not_name_is_asked_for_and_nothing_is_kept(tmp_path, told, theirs):
    told(**theirs)
    store = RunStore(tmp_path)
    options = "--flow, --functions, --inputs, --out, --engine (or --url, or --host), --embedder"
    for places in (RunPlaces(), RunPlaces(api_key_env="KEY")):
        with pytest.raises(SetupError) as refused:
            find_run(store, "chain-1", DATABASE, places)
        assert str(refused.value).endswith(f"give {options}")
    most = RunPlaces(**{**OURS, "out": None}, engines=("http://gpu1:1",))
    with pytest.raises(SetupError, match="give --out"):
        find_run(store, "chain-1", DATABASE, most)
    assert store.having("chain-1") is None


def test_a_program_says_all_of_it_itself_so_nothing_of_it_is_taken(tmp_path, told):
    told()
    _, found = find_run(RunStore(tmp_path), "chain-1", DATABASE)
    assert (found.flow_path, found.inputs, found.out, found.engines) == (None, None, "", ())
    assert (found.api_key_env, found.retrieval) == (None, None)


def test_a_run_of_this_host_keeps_its_places_but_for_those_that_are_named(tmp_path):
    store = RunStore(tmp_path)
    here = record(flow_path="/srv/flow.yaml", engines=("http://gpu1:1",), api_key_env="OURS")
    store.create(here)
    places = RunPlaces(inputs="/srv/rows.jsonl")
    _, found = find_run(store, "chain-1", None, places)
    assert found == msgspec.structs.replace(here, inputs="/srv/rows.jsonl")
    _, found = find_run(store, "chain-1", None, RunPlaces(url="http://kairos:1"))
    moved = {"engines": (), "url": "http://kairos:1", "api_key_env": None}
    assert found == msgspec.structs.replace(here, **moved)


def test_a_run_with_a_pass_that_is_not_known_here_is_refused(tmp_path, told):
    told(passes={"prune": False, "theirs": True})
    with pytest.raises(SetupError, match=r"passes that are not known here: theirs$"):
        find_run(RunStore(tmp_path), "chain-1", DATABASE, RunPlaces(**OURS, url="http://u:1"))
