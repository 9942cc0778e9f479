"""The journal of a run on Kafka: what one executor found out, another on an empty directory has;
of two executors only the one that claimed the run last counts."""

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import AsyncMock

import confluent_kafka
import msgspec
import pytest

from kairos.errors import SetupError
from kairos.live.bus.left_out import left_out
from kairos.live.kafka.cluster import KafkaCluster
from kairos.live.runs import journal as journal_module
from kairos.live.runs import run_topic, run_topic_reader
from kairos.live.runs.journal import RunJournal
from kairos.live.runs.journal_changes import NodeKept
from kairos.live.runs.large_values import MESSAGE_VALUE_BYTES, LargeValues
from kairos.live.runs.result_store import KeptResult
from kairos.live.runs.run_log import RecordTold, RunClaimed
from kairos.live.runs.run_store import RunRecord, RunStore
from kairos.live.runs.run_topic import RunTopic
from kairos.live.runs.run_topic_reader import (
    WRITER,
    RunTopicReader,
    await_silence,
    latest_record,
)
from kairos.tools import run_bus
from kairos.tools.run_bus import find_run, tell_cancelled
from kairos.topics import RUNS

LARGE = "x" * MESSAGE_VALUE_BYTES


def known(journal, row):
    return journal.resumed(0, [row])[row].results


class Hosts:
    """Hosts, each with a directory of its own, that execute one run."""

    def __init__(self, kafka, directory, stack):
        self.cluster = KafkaCluster(servers=kafka.servers)
        self.run_id = f"run-{secrets.token_hex(4)}"
        self.values = directory / "values"
        self._directory, self._stack, self._open = directory, stack, []
        self.troubles = []  # with their disks

    def execute(self, host, *, values=None, run_id=None):
        """The journal there, claimed."""
        directory = self._directory / host
        directory.mkdir(exist_ok=True)
        run_id = run_id or self.run_id
        topic = RunTopic(self.cluster, run_id, LargeValues(values, run_id))
        journal = RunJournal(directory / "journal.sqlite", self.troubles.append, topic)
        self._open.append(journal)
        return journal

    def leave(self, journal):
        journal.close(give_up=True)
        self._open.remove(journal)

    def leave_all(self):
        for journal in list(self._open):
            self.leave(journal)


@pytest.fixture
def hosts(mock_kafka, tmp_path):
    mock_kafka.create(RUNS)
    with ExitStack() as stack:
        hosts = Hosts(mock_kafka, tmp_path, stack)
        stack.callback(hosts.leave_all)
        yield hosts


def keep(journal, row, value, node="a", **more):
    journal.keep(0, row, node, f"signature of {value}"[:50], value, shared=False, **more)


def end(journal, row, value="out"):
    journal.end(0, row, "written", b"digest", value)


def until_lost(journal):
    """What it is told, when it next has to do with the journal."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        journal.settle()
    pytest.fail("it went on")


def test_another_host_with_an_empty_directory_has_all_that_was_journalled(hosts):
    first = hosts.execute("one")
    keep(first, 0, {"n": [1, 2, "é"]})
    first.keep(0, 1, "shared", "s", "for all", shared=True)
    first.keep(0, 2, "shared", "s", "for all", shared=True)
    keep(first, 3, "vectors", until_end=True)
    end(first, 0)
    first.end(0, 3, "gathered", b"d", 7, key="k")
    first.end(0, 4, "failed", b"d", "why", node="a")
    first.settle()
    hosts.leave(first)

    second = hosts.execute("two")

    for journal in (second, hosts.execute("one")):
        assert known(journal, 0) == {
            "a": KeptResult("signature of {'n': [1, 2, 'é']}", {"n": [1, 2, "é"]})
        }
        assert known(journal, 2) == known(journal, 1) == {"shared": KeptResult("s", "for all")}
        assert known(journal, 3) == {}
        assert list(journal.written(0, 9)) == [(0, "out")]
        assert list(journal.groups(9)) == [("k", [7])]
        assert [(each.row, each.node, each.error) for each in journal.failed(0, 9)] == [
            (4, "a", "why")
        ]
        assert journal.resumed(0, [0])[0].ended == b"digest"
        hosts.leave(journal)


def test_of_two_executors_the_later_one_counts_and_the_earlier_one_is_told(hosts):
    first = hosts.execute("one")
    keep(first, 0, "early")
    first.settle()
    second = hosts.execute("two")
    # As if it had not heard of it yet.
    first._topic._put(NodeKept(0, 0, "b", "s", msgspec.Raw(b"1")))
    first._topic._producer.flush(60)
    keep(second, 1, "theirs")
    second.settle()

    with pytest.raises(SetupError, match=r"is executed on .* now"):
        until_lost(first)
    with pytest.raises(SetupError, match="is executed on"):
        keep(first, 2, "later")

    hosts.leave_all()
    third = hosts.execute("three")
    assert [sorted(known(third, row)) for row in (0, 1, 2)] == [["a"], ["a"], []]
    # And where the earlier one was, too.
    assert [sorted(known(hosts.execute("one"), row)) for row in (0, 1, 2)] == [["a"], ["a"], []]


def test_a_name_that_anybody_may_have_given_itself_does_nothing_to_a_terminal(hosts):
    first = hosts.execute("one")
    claim = msgspec.json.encode(RunClaimed("\x1b[2J\nhost" + "x" * 100))
    producer = confluent_kafka.Producer({"bootstrap.servers": hosts.cluster.servers})
    named = {"partition": first._topic.partition, "headers": [(WRITER, "another")]}
    producer.produce(RUNS, claim, hosts.run_id, **named)
    assert producer.flush(60) == 0
    with pytest.raises(SetupError, match=r"is executed on \[2Jhostx{55} now"):
        until_lost(first)


def test_a_host_that_comes_back_reads_on_from_where_it_was(hosts, monkeypatch):
    first = hosts.execute("one")
    for row in range(300):
        end(first, row)
    first.settle()
    hosts.leave(first)
    second = hosts.execute("two")
    for row in range(300, 310):
        end(second, row)
    hosts.leave(second)
    applied = []
    monkeypatch.setattr(
        RunJournal,
        "_apply",
        lambda self, change, apply=RunJournal._apply: (applied.append(change), apply(self, change)),
    )

    again = hosts.execute("one")

    assert [each.row for each in applied] == list(range(300, 310))
    assert again.outcomes(0, 1000) == {"written": 310}


def test_a_host_that_left_before_its_disk_had_all_reads_that_again(hosts, monkeypatch):
    monkeypatch.setattr(run_topic, "_CLOSE_S", 0.5)
    first = hosts.execute("one")
    with monkeypatch.context() as slow_disk:
        slow_disk.setattr(journal_module, "_AHEAD", -1)
        keep(first, 0, "late")
        hosts.leave(first)

    assert sorted(known(hosts.execute("one"), 0)) == ["a"]


def test_a_host_whose_disk_was_full_when_it_left_reads_what_it_lacks_again(hosts, monkeypatch):
    monkeypatch.setattr(run_topic, "_CLOSE_S", 0.5)
    first = hosts.execute("one")
    first._commit._connection.execute("PRAGMA max_page_count = 1")  # what it has by now
    keep(first, 0, LARGE[:100_000])
    until = time.monotonic() + 30
    while not hosts.troubles:
        assert time.monotonic() < until
        time.sleep(0.01)
    keep(first, 1, "small")
    first.tell(b"{}")
    time.sleep(0.2)  # it may come back, or not
    hosts.leave(first)

    again = hosts.execute("one")
    assert [sorted(known(again, row)) for row in (0, 1)] == [["a"], ["a"]]


def test_a_large_value_goes_by_a_file_that_both_hosts_see(hosts, mock_kafka):
    first = hosts.execute("one", values=hosts.values)
    keep(first, 0, LARGE)
    end(first, 1, {"text": LARGE})
    first.settle()
    hosts.leave(first)
    assert all(len(each.value()) < 1000 for each in everything(hosts, mock_kafka))

    second = hosts.execute("two", values=hosts.values)
    assert known(second, 0)["a"].value == LARGE
    assert list(second.written(0, 9)) == [(1, {"text": LARGE})]
    assert all(
        each.stat().st_mode & 0o077 == 0 for each in hosts.values.rglob("*") if each.is_file()
    )
    hosts.leave(second)

    with pytest.raises(SetupError, match="name it with --values"):
        hosts.execute("three")
    (file, *_) = hosts.values.rglob("*/*")
    file.write_bytes(b"torn")
    with pytest.raises(SetupError, match="does not hold what its name says"):
        hosts.execute("four", values=hosts.values)


def test_without_such_a_directory_a_large_value_stops_the_run_and_says_what_to_give(hosts):
    first = hosts.execute("one")
    keep(first, 0, LARGE[:-2])  # with its quotes as large as may be
    with pytest.raises(SetupError, match="name a directory that all hosts see with --values"):
        keep(first, 1, LARGE)
    first.settle()
    hosts.leave(first)
    assert [sorted(known(hosts.execute("two"), row)) for row in (0, 1)] == [["a"], []]


def test_what_is_known_of_a_run_is_there_for_others_unless_the_run_was_lost(hosts):
    assert latest_record(hosts.cluster, hosts.run_id) is None
    first = hosts.execute("one")
    first.tell(b'{"state": "running"}')
    first.settle()
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "running"}'
    second = hosts.execute("two")
    first._topic._put(RecordTold(msgspec.Raw(b'{"state": "stale"}')))
    first._topic._producer.flush(60)
    second.tell(b'{"state": "done"}')
    second.settle()
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "done"}'


@pytest.mark.parametrize("window", [1, 3, 1_000])
def test_what_was_told_last_is_found_from_the_end_of_the_topic(hosts, monkeypatch, window):
    for module in (run_topic, run_topic_reader):
        monkeypatch.setattr(module, "partition_for", lambda *_: 0)
    before = hosts.execute("before", run_id="another")
    for row in range(200):
        keep(before, row, "theirs")
    before.settle()
    first = hosts.execute("one")
    first.tell(b'{"state": "running"}')
    keep(first, 0, "mine")
    first.settle()
    looked_at = []
    entry = RunTopicReader._entry
    monkeypatch.setattr(
        RunTopicReader, "_entry", lambda self, each: (looked_at.append(each), entry(self, each))[1]
    )
    monkeypatch.setattr(run_topic_reader, "_LOOKS_BACK", window)
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "running"}'
    assert (len(looked_at) < 200) == (window < 1_000)
    second = hosts.execute("two")  # has claimed it, and told nothing: what the first told counts
    first._topic._put(RecordTold(msgspec.Raw(b'{"state": "stale"}')))
    first._topic._producer.flush(60)
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "running"}'
    second.tell(b'{"state": "done"}')
    second.settle()
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "done"}'


def test_a_host_that_is_left_while_it_begins_takes_the_run_from_nobody(hosts, monkeypatch):
    first = hosts.execute("one")
    monkeypatch.setattr(RunTopicReader, "has_caught_up", False)  # it has much to read still
    topic = RunTopic(hosts.cluster, hosts.run_id, LargeValues(None, hosts.run_id))
    reading = threading.Event()
    read = RunTopicReader.read
    monkeypatch.setattr(RunTopicReader, "read", lambda self: (reading.set(), read(self))[1])
    (directory := hosts.values.parent / "two").mkdir()
    with ThreadPoolExecutor(1) as threads:
        path = directory / "journal.sqlite"
        begun = threads.submit(RunJournal, path, hosts.troubles.append, topic)
        assert reading.wait(30)
        topic.leave()
        with pytest.raises(SetupError, match="was left before it began"):
            begun.result(30)
    keep(first, 0, "goes on")
    first.settle()
    assert known(first, 0) == {"a": KeptResult("signature of goes on", "goes on")}


def test_a_large_value_is_written_beside_whoever_sends_it_and_stays_in_order(hosts, monkeypatch):
    go_on, kept_in = threading.Event(), []
    write = LargeValues.keep

    def slow(self, value):
        kept_in.append(threading.current_thread())
        assert go_on.wait(30)
        return write(self, value)

    monkeypatch.setattr(LargeValues, "keep", slow)
    first = hosts.execute("one", values=hosts.values)
    keep(first, 0, LARGE)
    keep(first, 0, "small", node="b")
    keep(first, 0, "other", node="a")  # of one result the later signature counts
    end(first, 0)
    assert first.backlog == 4
    assert first.backlog_bytes > MESSAGE_VALUE_BYTES
    go_on.set()
    first.settle()
    assert threading.main_thread() not in kept_in
    assert (first.backlog, first.backlog_bytes) == (0, 0)
    assert known(first, 0)["a"].value == "other"
    hosts.leave(first)
    assert known(hosts.execute("two", values=hosts.values), 0)["a"].value == "other"


def test_an_executor_is_heard_while_large_values_are_being_written(hosts, monkeypatch):
    """Who is not heard is taken for dead, and a directory that hosts share may be slow."""
    go_on, write = threading.Event(), LargeValues.keep

    def slow(self, value):
        assert go_on.wait(60)
        return write(self, value)

    monkeypatch.setattr(LargeValues, "keep", slow)
    first = hosts.execute("one", values=hosts.values)
    keep(first, 0, LARGE)
    first.tell(b'{"state": "running"}')
    first._topic._producer.flush(30)
    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "running"}'
    go_on.set()
    first.settle()
    assert (first.backlog, first.backlog_bytes) == (0, 0)
    assert known(first, 0)["a"].value == LARGE


def test_a_run_is_cancelled_without_what_it_has_found_out_and_nobody_goes_on_with_it(
    hosts, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_bus, "ensure", AsyncMock())  # this stand-in has no controller
    first = hosts.execute("one", values=hosts.values)
    keep(first, 0, LARGE)
    first.settle()
    (file, *_) = hosts.values.rglob("*/*")
    file.unlink()
    bus = f"kafka://{hosts.cluster.servers}"
    store = RunStore(tmp_path / "store")
    given = {"flow": "chain", "out": "out.jsonl", "created_at": 1, "changed_at": 1}
    record = RunRecord(id=hosts.run_id, state="cancelled", bus=bus, **given)

    tell_cancelled(record, {})

    with pytest.raises(SetupError, match="was cancelled: its results are gone"):
        find_run(store, hosts.run_id, bus, None, {})
    with pytest.raises(SetupError, match="is executed on"):
        until_lost(first)


def test_an_entry_that_kafka_does_not_take_stops_the_run_with_a_reason(hosts):
    first = hosts.execute("one")
    with pytest.raises(SetupError, match=r"Kafka does not take an entry of 2\d+ bytes"):
        first.end(0, 0, "gathered", b"d", 1, key="k" * (2 << 20))
    assert first.backlog == 0


def test_of_a_log_whose_beginning_is_gone_what_is_left_counts(hosts):
    first = hosts.execute("one")
    # As if the answer had stood before it.
    first._topic.send(NodeKept(0, 0, "shared", "s"))
    keep(first, 0, "kept")
    first.settle()
    assert known(first, 0) == {"a": KeptResult("signature of kept", "kept")}


def test_of_a_run_that_is_older_than_its_log_what_its_executor_has_written_counts(hosts):
    producer = confluent_kafka.Producer({"bootstrap.servers": hosts.cluster.servers})
    part = run_topic_reader.partition_for(producer, hosts.run_id)
    told = RecordTold(msgspec.Raw(b'{"state": "running"}'))
    for row, (writer, entry) in enumerate(
        [("one", None), ("one", told), ("stale", None), ("one", None)]
    ):
        kept = entry or NodeKept(0, row, "a", "s", msgspec.Raw(b"1"))
        headers = [(WRITER, writer)]
        data = msgspec.json.encode(kept)
        producer.produce(RUNS, data, hosts.run_id, partition=part, headers=headers)
    assert producer.flush(60) == 0

    assert latest_record(hosts.cluster, hosts.run_id) == b'{"state": "running"}'
    journal = hosts.execute("another")
    assert [sorted(known(journal, row)) for row in range(4)] == [["a"], [], [], ["a"]]


def test_other_runs_and_what_makes_no_sense_do_nothing(hosts):
    other = hosts.execute("other", run_id=hosts.run_id + "-other")
    first = hosts.execute("one")
    keep(other, 0, "of another run")
    before = left_out()[RUNS]
    producer = confluent_kafka.Producer({"bootstrap.servers": hosts.cluster.servers})
    for value in (b"\xff", b"{}", b'{"type": "end", "row": -1}', b"[" * 10_000, None):
        producer.produce(RUNS, value, hosts.run_id, partition=first._topic.partition)
    forged = msgspec.json.encode({"type": "forget", "stage": 0, "row": 0})
    producer.produce(RUNS, forged, hosts.run_id, partition=first._topic.partition)
    assert producer.flush(60) == 0
    keep(first, 1, "ours")
    first.settle()

    assert [sorted(known(first, row)) for row in (0, 1)] == [[], ["a"]]
    assert left_out()[RUNS] == before + 5


@contextmanager
def written_by_others(hosts, partition):
    """Another run writes all the time, so that Kafka never tells of an end."""
    producer = confluent_kafka.Producer({"bootstrap.servers": hosts.cluster.servers})
    flows, is_over = threading.Event(), threading.Event()

    def write():
        while not is_over.wait(0.005):
            producer.produce(
                RUNS, b"{}", "other", partition=partition, on_delivery=lambda *_: flows.set()
            )
            producer.poll(0)

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        try:
            assert flows.wait(60)
            yield
        finally:
            is_over.set()
            writing.result()
            assert producer.flush(60) == 0


def test_a_run_is_taken_over_while_other_runs_write_to_its_partition_all_the_time(hosts):
    first = hosts.execute("one")
    first.tell(b'{"state": "running"}')
    keep(first, 0, "early")
    first.settle()
    with written_by_others(hosts, first._topic.partition), ThreadPoolExecutor() as threads:
        told = threads.submit(latest_record, hosts.cluster, hosts.run_id)
        assert told.result(60) == b'{"state": "running"}'
        second = threads.submit(hosts.execute, "two").result(60)
        assert sorted(known(second, 0)) == ["a"]


def test_who_stands_by_hears_a_run_behind_all_that_there_is_of_others(hosts, monkeypatch):
    first = hosts.execute("one")
    producer = confluent_kafka.Producer({"bootstrap.servers": hosts.cluster.servers})
    for _ in range(200):
        producer.produce(RUNS, b"{}", "other", partition=first._topic.partition)
    assert producer.flush(60) == 0
    first.tell(b'{"state": "done"}')
    first.settle()
    read, heard = RunTopicReader.read, []
    monkeypatch.setattr(run_topic_reader, "_AT_ONCE", 10)
    monkeypatch.setattr(RunTopicReader, "read", lambda self: time.sleep(0.05) or read(self))

    await_silence(hosts.cluster, hosts.run_id, lambda told: heard.append(told) or True, 0.5)

    assert heard == [b'{"state": "done"}']


def test_silence_while_the_cluster_was_away_is_none_for_who_stands_by(
    hosts, mock_kafka, monkeypatch
):
    monkeypatch.setattr(run_topic_reader, "_ANSWER_S", 0.5)
    monkeypatch.setattr(run_topic_reader, "_ASK_EVERY_S", 0.1)
    first = hosts.execute("one")
    first.tell(b'{"state": "running"}')
    first.settle()
    has_read = threading.Event()
    with ThreadPoolExecutor() as threads:
        told = (hosts.cluster, hosts.run_id, lambda _: has_read.set(), 4.0)
        waiting = threads.submit(await_silence, *told)
        assert has_read.wait(60)
        mock_kafka.go_down()
        time.sleep(3.5)
        came_up_at = time.monotonic()
        mock_kafka.come_up()
        waiting.result(60)
    assert time.monotonic() > came_up_at + 2.0


def test_while_the_cluster_is_away_results_wait_and_none_is_lost(hosts, mock_kafka):
    first = hosts.execute("one")
    mock_kafka.go_down()
    for row in range(20):
        end(first, row)
    time.sleep(0.5)
    assert first.backlog == 20
    mock_kafka.come_up()
    first.settle()
    assert first.backlog == 0
    assert first.outcomes(0, 99) == {"written": 20}


def test_who_waits_for_a_cluster_that_is_away_is_let_go_when_the_run_is_left(
    hosts, mock_kafka, monkeypatch
):
    monkeypatch.setattr(run_topic, "_CLOSE_S", 0.2)
    first = hosts.execute("one")
    mock_kafka.go_down()
    end(first, 0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(first.settle)
        hosts.leave(first)
        with pytest.raises(SetupError, match="was left before Kafka had all of it"):
            waiting.result(60)
    mock_kafka.come_up()


def everything(hosts, kafka):
    """All messages of the run."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": secrets.token_hex(4),
            "auto.offset.reset": "earliest",
        }
    )
    parts = consumer.list_topics(RUNS).topics[RUNS].partitions
    consumer.assign([confluent_kafka.TopicPartition(RUNS, part, 0) for part in parts])
    found = []
    while batch := consumer.consume(1000, 1.0):
        found += [
            each for each in batch if not each.error() and each.key() == hosts.run_id.encode()
        ]
    consumer.close()
    return found
