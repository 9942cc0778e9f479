"""Transactions with a client that fails in every way the real one can."""

import asyncio
import threading

import confluent_kafka as kafka
import pytest

from kairos.cluster import KafkaCluster
from kairos.cluster.kafka import transactions as module
from kairos.cluster.kafka.transactions import NotSent, Transactions
from kairos.core import Message


def failure(code=kafka.KafkaError._TIMED_OUT, **kind):
    flags = [kind.get(name, False) for name in ("fatal", "retriable", "aborts")]
    return kafka.KafkaException(kafka.KafkaError(code, "failed", *flags))


class Client:
    """librdkafka's producer. `calls`: what was called, of all clients together, with a number for
    each; `trouble`: what calls raise or do, by name, one after the other."""

    def __init__(self, calls, trouble, settings):
        self._calls = calls
        self._trouble = trouble
        self.settings = settings
        calls.append("new")

    def _called(self, name):
        self._calls.append(name)
        for each in self._trouble.get(name, []):
            self._trouble[name].remove(each)
            if isinstance(each, Exception):
                raise each
            each()
            return

    def init_transactions(self, timeout):
        self._called("init")

    def begin_transaction(self):
        self._called("begin")

    def produce(self, topic, value, key, headers, on_delivery):
        self._called(f"produce {value.decode()}")
        if value == b"refused":
            on_delivery(kafka.KafkaError(kafka.KafkaError.MSG_SIZE_TOO_LARGE), None)

    def poll(self, timeout):
        self._called("poll")

    def send_offsets_to_transaction(self, offsets, metadata, timeout):
        self._called("offsets")

    def commit_transaction(self, timeout):
        self._called("commit")

    def abort_transaction(self, timeout):
        self._called("abort")


@pytest.fixture
def calls():
    return []


@pytest.fixture
def trouble():
    return {}


@pytest.fixture
async def transactions(monkeypatch, calls, trouble):
    monkeypatch.setattr(module.kafka, "Producer", lambda settings: Client(calls, trouble, settings))
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    monkeypatch.setattr(module, "_STEP_S", 0.05)
    async with Transactions(KafkaCluster(servers="")) as transactions:
        yield transactions


async def perform(transactions, *values):
    outgoing = [("out", Message(key="k", value=value.encode())) for value in values]
    async with asyncio.timeout(60):
        await transactions.perform(outgoing, {("t", 0): (1, "")}, "metadata")


GOOD = ["begin", "produce a", "offsets", "commit"]
BAD_START = ["new", "init", "begin", "produce a", "offsets"]


async def test_what_must_be_aborted_is_before_it_is_said_that_it_was_not_sent(
    transactions, calls, trouble
):
    trouble["offsets"] = [failure(kafka.KafkaError.ILLEGAL_GENERATION, aborts=True)]
    trouble["abort"] = [failure(retriable=True)]
    with pytest.raises(NotSent):
        await perform(transactions, "a")
    assert calls == [*BAD_START, "abort", "abort"]
    await perform(transactions, "a")
    assert calls[7:] == GOOD


async def test_where_it_cannot_be_aborted_a_new_client_ends_it(transactions, calls, trouble):
    trouble["commit"] = [failure(aborts=True)]
    trouble["abort"] = [failure(fatal=True)]
    with pytest.raises(NotSent):
        await perform(transactions, "a")
    assert calls[-4:] == ["commit", "abort", "new", "init"]


async def test_a_client_that_hangs_is_left_and_the_next_one_ends_what_it_has_open(
    transactions, calls, trouble, monkeypatch
):
    monkeypatch.setattr(module, "_STUCK_S", 0.2)
    hangs = threading.Event()
    trouble["offsets"] = [hangs.wait]
    with pytest.raises(NotSent, match="hung"):
        await perform(transactions, "a")
    assert calls == [*BAD_START, "new", "init"]
    trouble["commit"] = [failure(fatal=True)]  # the zombie's, as the cluster would have it
    hangs.set()
    async with asyncio.timeout(60):
        while calls[-1] != "commit":
            await asyncio.sleep(0.01)
    await perform(transactions, "a")
    assert calls[8:] == GOOD


async def test_a_client_that_always_fails_is_given_up_for_a_new_one(
    transactions, calls, trouble, monkeypatch
):
    monkeypatch.setattr(module, "_GIVE_UP_S", 0.05)
    trouble["offsets"] = [failure(retriable=True) for _ in range(10_000)]
    trouble["abort"] = [failure(retriable=True) for _ in range(10_000)]
    with pytest.raises(NotSent):
        await perform(transactions, "a")
    assert calls[-2:] == ["new", "init"]


async def test_messages_that_are_refused_for_good_are_told_by_their_place(transactions, trouble):
    trouble["commit"] = [failure(aborts=True)]
    with pytest.raises(NotSent) as raised:
        await perform(transactions, "a", "refused", "b")
    assert list(raised.value.refused) == [1]
    assert "size" in raised.value.refused[1].lower()


async def test_more_messages_than_the_client_holds_wait_for_room(transactions, calls, trouble):
    trouble["produce a"] = [BufferError()]
    await perform(transactions, "a")
    assert calls == ["new", "init", "begin", "produce a", "poll", "produce a", "offsets", "commit"]


async def test_nothing_is_sent_for_who_is_no_member(transactions, calls):
    with pytest.raises(NotSent, match="not in the group"):
        await transactions.perform([], {}, None)
    assert "begin" not in calls
