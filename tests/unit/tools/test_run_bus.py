import asyncio

import pytest

from kairos.errors import SetupError
from kairos.live.runs.run_store import RunRecord, RunStore
from kairos.tools.run_bus import find_run, run_cluster, run_topic, tell_cancelled


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
