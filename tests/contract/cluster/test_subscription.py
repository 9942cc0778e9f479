"""A subscription on librdkafka's mock cluster: what comes, in which order, and what becomes of it
while the cluster is away. What only a real Kafka shows is in `test_kafka_bus.py`."""

import asyncio
import contextlib
import logging
import secrets
import threading
import time

import confluent_kafka
import pytest

from kairos.cluster import KafkaCluster, Producer, ReceivedMessage
from kairos.cluster.kafka import poll
from kairos.cluster.kafka import subscription as subscription_module
from kairos.cluster.kafka.connectivity import Connectivity
from kairos.cluster.kafka.items import Assigned, CaughtUp, Passed, Revoked
from kairos.cluster.kafka.poll import PollThread
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import TopicMissing, Unavailable
from tests.support.buses import TIMEOUT_S, until_logged
from tests.support.kafka_mock import MockCluster


@pytest.fixture
def connection(mock_kafka):
    return KafkaCluster(servers=mock_kafka.servers)


@pytest.fixture
def topic(mock_kafka):
    name = f"s{secrets.token_hex(4)}"
    mock_kafka.create(name, partitions=1)
    return name


@pytest.fixture
def patient(monkeypatch):
    """Leaving ends by itself, not because it has taken long."""
    monkeypatch.setattr(subscription_module, "_LEAVE_S", TIMEOUT_S)


async def fill(connection, topic, count, *, value=b"x"):
    async with Producer(connection) as producer:
        await asyncio.gather(*(producer.send(topic, f"{n}", value) for n in range(count)))


async def read(subscription, kind, count=1):
    """The first so many items of a kind, and those of it that come with them; the others, before
    and beside them, are dropped."""
    items = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(items) < count:
            items += [item for item in await subscription.batch() if isinstance(item, kind)]
    return items


async def test_without_a_group_all_of_a_topic_comes_from_the_start_that_was_asked_for(
    connection, topic
):
    await fill(connection, topic, 3)
    async with Subscription(connection, [topic]) as subscription:
        items = await read(subscription, ReceivedMessage | CaughtUp, 4)
        assert [item.offset for item in items[:3]] == [0, 1, 2]
        assert items[3] == CaughtUp(topic, 0)
    async with Subscription(connection, [topic], start="end") as subscription:
        await read(subscription, CaughtUp)
        await fill(connection, topic, 1)
        [item] = await read(subscription, ReceivedMessage)
        assert item.offset == 3


async def test_what_is_no_text_comes_with_replacement_characters_and_tombstones_come(
    connection, topic
):
    raw = confluent_kafka.Producer({"bootstrap.servers": connection.servers, "log_level": 0})
    raw.produce(topic, None, b"k\xff", headers=[("h", b"\xfe"), ("none", None), ("h2", b"x")])
    raw.produce(topic, b"v")
    assert raw.flush(TIMEOUT_S) == 0
    async with Subscription(connection, [topic]) as subscription:
        odd, bare = await read(subscription, ReceivedMessage, 2)
    assert (odd.key, odd.value) == ("k\ufffd", None)
    assert odd.headers == {"h": "\ufffd", "none": "", "h2": "x"}
    assert (bare.key, bare.value, bare.headers) == ("", b"v", {})
    assert abs(bare.at / 1e6 - time.time()) < TIMEOUT_S


async def test_a_message_with_a_header_whose_name_is_no_text_is_left_out_with_a_warning(
    mock_kafka, connection, topic, caplog
):
    for name in [*[b"fine"] * 100, b"\xff", b"fine"]:
        mock_kafka.send_header(topic, name)
    async with Subscription(connection, [topic]) as subscription:
        items = await read(subscription, ReceivedMessage, 101)
    assert [item.offset for item in items] == [*range(100), 101]
    assert f"left out the message {topic}/0 at 100" in caplog.text


async def test_a_group_goes_on_from_what_it_committed_with_its_metadata(connection, topic):
    await fill(connection, topic, 5)
    group = f"g{topic}"
    async with Subscription(connection, [topic], group) as subscription:
        [assigned] = await read(subscription, Assigned)
        assert assigned == Assigned(topic, 0, -1001, "")
        await subscription.commit({(topic, 0): (3, "so far")})
        assert await subscription.committed([(topic, 0)]) == {(topic, 0): (3, "so far")}
    async with Subscription(connection, [topic], group) as subscription:
        assigned, *received = await read(subscription, Assigned | ReceivedMessage, 3)
        assert assigned == Assigned(topic, 0, 3, "so far")
        assert [item.offset for item in received] == [3, 4]


async def test_nothing_is_committed_for_a_partition_that_is_not_held(connection, topic):
    async with Subscription(connection, [topic], f"g{topic}") as subscription:
        await read(subscription, Assigned)
        with pytest.raises(Unavailable, match="revoked"):
            await subscription.commit({(topic, 7): (3, "")})


async def test_the_end_of_a_partition_is_told_each_time_it_is_reached_to_who_wants_it(
    connection, topic
):
    await fill(connection, topic, 2)
    async with Subscription(connection, [topic], tells_ends=True) as subscription:
        assert await read(subscription, Passed) == [Passed(topic, 0, 2)]
        await fill(connection, topic, 1)
        assert await read(subscription, Passed) == [Passed(topic, 0, 3)]


async def test_a_topic_that_does_not_exist_is_said_to_be_missing(connection, monkeypatch):
    monkeypatch.setattr(poll, "_VISIBLE_S", 0.5)
    for group in (None, "g"):
        async with Subscription(connection, ["nowhere"], group) as subscription:
            for _ in range(2):  # and again, to whoever asks again
                with pytest.raises(TopicMissing, match="'nowhere' cannot be used"):
                    await subscription.batch()


async def test_a_subscription_that_breaks_says_so_whenever_it_is_asked(
    connection, topic, monkeypatch
):
    async with Subscription(connection, [topic], f"g{topic}") as subscription:
        await read(subscription, Assigned)

        def break_down(record):
            raise ValueError("broken")

        monkeypatch.setattr(subscription._poll, "_take", break_down)
        await fill(connection, topic, 1)
        for _ in range(2):
            with pytest.raises(Unavailable, match="broken"):
                await read(subscription, Revoked)
        with pytest.raises(Unavailable, match="not read any more"):
            await subscription.commit({(topic, 0): (0, "")})
        with pytest.raises(Unavailable, match="not read any more"):
            await subscription.committed([(topic, 0)])


async def test_what_is_held_back_comes_later_and_all_of_it(connection, topic, monkeypatch):
    monkeypatch.setattr(poll, "_PATIENCE_S", 0.1)
    count = 3_000
    await fill(connection, topic, count)
    async with Subscription(connection, [topic], f"g{topic}") as subscription:
        [first, *_] = came = await read(subscription, ReceivedMessage)
        subscription.hold(True)
        await polled_while_paused(subscription)
        while subscription._ahead:
            came += [
                each for each in await subscription.batch() if isinstance(each, ReceivedMessage)
            ]
        await polled_while_paused(subscription)
        assert not subscription._ahead
        assert len(came) < 1_100
        await subscription.commit({(topic, 0): (1, "")})  # is answered meanwhile
        subscription.hold(False)
        came += await read(subscription, ReceivedMessage, count - len(came))
    assert [item.offset for item in came] == list(range(first.offset, count))


async def polled_while_paused(subscription, times=10):
    """Return once a subscription that wants no more was polled several times more."""
    async with asyncio.timeout(TIMEOUT_S):
        while not subscription._poll._is_paused:
            await asyncio.sleep(0.01)
        for _ in range(times):
            await asyncio.wrap_future(subscription._poll.questions.add(lambda _consumer: None))


async def test_a_subscription_nobody_reads_keeps_a_bounded_amount_and_ends(
    connection, topic, patient, monkeypatch
):
    monkeypatch.setattr(subscription_module, "_AHEAD_BYTES", 1_000_000)
    monkeypatch.setattr(poll, "_PATIENCE_S", 0.1)
    await fill(connection, topic, 40, value=b"x" * 100_000)  # a mock cluster keeps 5 MB
    async with Subscription(connection, [topic], f"g{topic}") as subscription:
        await read(subscription, ReceivedMessage)
        await polled_while_paused(subscription)
        ahead_bytes = subscription._bytes_put - subscription._bytes_taken
    assert 1_000_000 <= ahead_bytes < 1_100_000
    assert subscription._poll.ended.done()


async def test_leaving_waits_for_a_client_that_hangs_no_longer_than_it_may(
    connection, topic, monkeypatch
):
    monkeypatch.setattr(subscription_module, "_LEAVE_S", 0.01)
    goes_on = threading.Event()
    async with Subscription(connection, [topic], f"g{topic}") as subscription:
        await read(subscription, Assigned)
        monkeypatch.setattr(subscription._poll._contact, "close", goes_on.wait)
    try:
        assert not subscription._poll.ended.done()
    finally:
        goes_on.set()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.wrap_future(subscription._poll.ended)


class Counting(Connectivity):
    losses = 0  # how often it was found out of reach

    def lose(self, client, why):
        super().lose(client, why)
        self.losses += 1


class TestAway:
    """With a cluster of its own, that goes away."""

    @pytest.fixture
    def cluster(self):
        cluster = MockCluster()
        cluster.create("t", partitions=1)
        return cluster

    @pytest.fixture
    def connection(self, cluster):
        return KafkaCluster(servers=cluster.servers)

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_a_cluster_that_is_not_there_yet_is_waited_for(
        self, cluster, connection, monkeypatch, group
    ):
        asked, listed = [], PollThread._listed

        def count(*given):
            asked.append(given)
            return listed(*given)

        monkeypatch.setattr(PollThread, "_listed", count)
        await fill(connection, "t", 1)
        cluster.go_down()
        async with Subscription(connection, ["t"], group) as subscription:
            reading = asyncio.create_task(read(subscription, ReceivedMessage))
            async with asyncio.timeout(TIMEOUT_S):
                while len(asked) < 2:
                    await asyncio.sleep(0.01)
            assert not reading.done()
            cluster.come_up()
            [item] = await reading
            assert item.key == "0"

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_a_cluster_that_is_away_can_be_left(
        self, cluster, connection, caplog, group, patient
    ):
        async with Subscription(connection, ["t"], group) as subscription:
            await read(subscription, CaughtUp)
            cluster.go_down()
            await until_logged(caplog, "cannot be reached")
        assert subscription._poll.ended.done()

    async def test_a_commit_waits_for_a_cluster_that_is_away(self, cluster, connection, caplog):
        async with Subscription(connection, ["t"], "g") as subscription:
            await read(subscription, Assigned)
            cluster.go_down()
            commit = asyncio.ensure_future(subscription.commit({("t", 0): (1, "")}))
            await until_logged(caplog, "cannot be reached")
            cluster.come_up()
            async with asyncio.timeout(TIMEOUT_S):
                with contextlib.suppress(Unavailable):  # or it is refused; it never hangs
                    await commit

    async def test_that_it_cannot_be_reached_is_said_once_and_so_is_that_it_can(
        self, cluster, connection, caplog, capfd
    ):
        caplog.set_level(logging.INFO)
        reach = Counting(connection.servers)
        async with Subscription(connection, ["t"], "g", reach=reach) as subscription:
            await read(subscription, CaughtUp)
            cluster.go_down()
            await until_logged(caplog, "cannot be reached at 127.0.0.1")
            async with asyncio.timeout(TIMEOUT_S):
                while reach.losses < 3:
                    await asyncio.sleep(0.01)
            cluster.come_up()
            await until_logged(caplog, "is reached again")
        lines = [r.getMessage() for r in caplog.records if r.name.endswith("connectivity")]
        assert len(lines) == 2
        assert capfd.readouterr().err == ""
