"""What every body of the port `Bus` must do, and no more than Kafka can: at least once, in order
per key. A test therefore never relies on the order across keys, nor on a message coming only once.
"""

import asyncio
import secrets
import sys

import pytest

from kairos.cluster import KafkaBus, KafkaCluster, MemoryBus, ensure_topics
from kairos.cluster.kafka.cluster import parse_bus
from kairos.core import Message, MessageTooLarge, Topic
from tests.support.buses import TIMEOUT_S, Apart, Seen, consuming, fail, publish, text

TOPICS = ("t", "out", "other")


@pytest.fixture(params=["memory", "mock", pytest.param("kafka", marks=pytest.mark.kafka)])
async def bus(request):
    apart = f"{Topic.AGENTS}{secrets.token_hex(4)}"
    if request.param == "memory":
        yield Apart(MemoryBus(), apart)
        return
    if request.param == "mock":
        cluster = request.getfixturevalue("mock_kafka")
        connection = KafkaCluster(servers=cluster.servers)
        for topic in TOPICS:
            cluster.create(f"{apart}.{topic}")
    else:
        connection = parse_bus(request.getfixturevalue("kafka"))
        await ensure_topics(
            connection, [Topic.DEAD_LETTERS, *(f"{apart}.{topic}" for topic in TOPICS)]
        )
    async with KafkaBus(connection) as body:
        yield Apart(body, apart)


async def test_a_message_arrives_as_it_was_published(bus):
    seen = Seen()
    sent = Message(key="k", value=b'{"a": 1}', headers={"kairos-app": "qa", "x": "é"})
    await bus.publish("t", sent)
    async with consuming(bus, seen):
        await seen.until('{"a": 1}')
    got = seen.messages[0]
    assert (got.key, got.value) == (sent.key, sent.value)
    assert sent.headers.items() <= got.headers.items()


async def test_messages_of_one_key_come_in_order_even_with_many_handlers(bus):
    async def yield_often(message: Message) -> None:
        for _ in range(int(text(message)) % 3):
            await asyncio.sleep(0)

    seen = Seen(yield_often)
    sent = [str(n) for n in range(50)]
    await publish(bus, *sent)
    async with consuming(bus, seen, concurrency=8):
        await seen.until(*sent)
    assert seen.firsts == sent


async def test_a_key_has_one_handler_at_a_time(bus):
    at_work: set[str] = set()
    overlaps = []

    async def work(message: Message) -> None:
        if message.key in at_work:
            overlaps.append(message.key)
        at_work.add(message.key)
        await asyncio.sleep(0)
        at_work.discard(message.key)

    seen = Seen(work)
    for n in range(30):
        await publish(bus, str(n), key=str(n % 3))
    async with consuming(bus, seen, concurrency=8):
        await seen.until(*map(str, range(30)))
    assert sorted(map(int, seen.values)) == list(range(30)), (
        "an overlap would have been redelivered"
    )


async def test_keys_are_handled_concurrently(bus):
    both_at_work = asyncio.Barrier(2)

    async def work(message: Message) -> None:
        await both_at_work.wait()

    seen = Seen(work)
    await publish(bus, "a", key="1")
    await publish(bus, "b", key="2")
    async with consuming(bus, seen, concurrency=2), asyncio.timeout(TIMEOUT_S):
        await seen.until("a", "b")


async def test_no_more_keys_than_the_concurrency_are_handled_at_once(bus):
    at_work, most = 0, 0

    async def work(message: Message) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1

    seen = Seen(work)
    for n in range(12):
        await publish(bus, str(n), key=str(n))
    async with consuming(bus, seen, concurrency=3):
        await seen.until(*map(str, range(12)))
    assert most <= 3


async def test_messages_published_before_a_consumer_came_are_kept(bus):
    seen = Seen()
    await publish(bus, "1", "2", "3")
    async with consuming(bus, seen):
        await seen.until("1", "2", "3")
    assert seen.firsts == ["1", "2", "3"]


async def test_every_group_sees_every_message(bus):
    one, other, late = Seen(), Seen(), Seen()
    await publish(bus, "before")
    async with consuming(bus, one, group="one"), consuming(bus, other, group="other"):
        await publish(bus, "after")
        await one.until("before", "after")
        await other.until("before", "after")
    async with consuming(bus, late, group="late"):
        await late.until("before", "after")
    assert one.firsts == other.firsts == late.firsts == ["before", "after"]


async def test_consumers_of_one_group_share_the_messages(bus):
    one, other = Seen(), Seen()
    sent = [str(n) for n in range(20)]

    async def all_seen() -> None:
        while set(one.values + other.values) < set(sent):
            await asyncio.sleep(0.01)

    async with consuming(bus, one), consuming(bus, other):
        for n in sent:
            await publish(bus, n, key=n)
        async with asyncio.timeout(TIMEOUT_S):
            await all_seen()
    assert len(one.values + other.values) < 2 * len(sent)


async def test_a_message_whose_handler_raised_comes_again_before_the_next_of_its_key(bus):
    async def fail_at_first(message: Message) -> None:
        if text(message) == "a" and message.headers["kairos-attempt"] == "1":
            raise ValueError("not yet")

    seen = Seen(fail_at_first)
    await publish(bus, "a", "b")
    async with consuming(bus, seen):
        await seen.until("b")
    assert seen.values[:3] == ["a", "a", "b"]
    assert [m.headers["kairos-attempt"] for m in seen.messages[:3]] == ["1", "2", "1"]


async def test_after_three_attempts_a_message_is_a_dead_letter_that_says_why(bus):
    seen, dead = Seen(fail), Seen()
    sent = Message(key="k", value=b"poison", headers={"kairos-app": "qa"})
    await bus.publish("t", sent)
    async with consuming(bus, seen), consuming(bus, dead, topic=Topic.DEAD_LETTERS):
        await dead.until("poison")
    assert [m.headers["kairos-attempt"] for m in seen.messages] == ["1", "2", "3"]
    letter = dead.messages[0]
    assert (letter.key, letter.value, letter.headers["kairos-app"]) == ("k", b"poison", "qa")
    assert letter.headers["kairos-dead-topic"] == bus.named("t")
    assert letter.headers["kairos-dead-group"] == bus.group("t", "g")
    assert letter.headers["kairos-dead-reason"] == "ValueError: cannot stand poison"


async def test_a_handler_that_ends_the_process_by_an_exception_has_failed(bus):
    async def leave(message: Message) -> None:
        sys.exit(f"cannot go on with {text(message)}")

    dead = Seen()
    await publish(bus, "a")
    async with consuming(bus, leave), consuming(bus, dead, topic=Topic.DEAD_LETTERS):
        await dead.until("a")
    assert dead.messages[0].headers["kairos-dead-reason"] == "SystemExit: cannot go on with a"


async def test_a_dead_message_does_not_hold_up_the_next_of_its_key(bus):
    async def fail_on_poison(message: Message) -> None:
        if text(message) == "poison":
            await fail(message)

    seen = Seen(fail_on_poison)
    await publish(bus, "poison", "food")
    async with consuming(bus, seen):
        await seen.until("food")


async def test_a_dead_letter_that_cannot_be_handled_is_not_buried_again(bus):
    dead = Seen(fail)
    await publish(bus, "poison")
    async with consuming(bus, fail), consuming(bus, dead, topic=Topic.DEAD_LETTERS):
        await dead.until("poison")
        await publish(bus, "later", topic=Topic.DEAD_LETTERS)
        await dead.until("later")
    assert dead.values.count("poison") <= 3


async def test_a_handler_whose_own_work_was_cancelled_has_failed_and_the_consumer_goes_on(bus):
    async def await_something_cancelled(message: Message) -> None:
        if text(message) == "a" and message.headers["kairos-attempt"] == "1":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    seen = Seen(await_something_cancelled)
    await publish(bus, "a", "b")
    async with consuming(bus, seen):
        await seen.until("b")
    assert seen.values == ["a", "a", "b"]


async def test_a_message_in_hand_when_its_consumer_is_cancelled_goes_to_the_next(bus):
    async def never_end(message: Message) -> None:
        await asyncio.Event().wait()

    first, second = Seen(never_end), Seen()
    await publish(bus, "a", "b")
    async with consuming(bus, first):
        await first.until("a")
    async with consuming(bus, second):
        await second.until("a", "b")
    assert first.values == ["a"]
    assert second.firsts == ["a", "b"]


async def test_cancelling_a_consumer_ends_it_and_its_handlers(bus):
    ended = asyncio.Event()

    async def wait(message: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    seen = Seen(wait)
    await publish(bus, "a")
    async with consuming(bus, seen) as consumer:
        await seen.until("a")
    assert consumer.cancelled()
    assert ended.is_set()


async def test_a_message_over_the_size_limit_is_refused_and_one_at_the_limit_is_not(bus):
    limit = (1 << 20) - len(bus.key("k"))
    with pytest.raises(MessageTooLarge, match="1048577 bytes"):
        await bus.publish("t", Message(key="k", value=b"x" * (limit + 1)))
    with pytest.raises(MessageTooLarge):
        await bus.publish("t", Message(key="k", value=b"", headers={"h": "x" * limit}))
    largest, seen = Message(key="k", value=b"x" * limit), Seen()
    await bus.publish("t", largest)
    async with consuming(bus, seen):
        await seen.until(text(largest))


async def test_what_a_handler_returns_is_published_in_order_when_it_is_done(bus):
    async def relay(message: Message):
        further = Message(key=message.key, value=message.value, headers={"from": "relay"})
        return [("out", further), ("other", further)]

    out, other = Seen(), Seen()
    sent = [str(n) for n in range(20)]
    await publish(bus, *sent)
    async with (
        consuming(bus, relay, concurrency=8),
        consuming(bus, out, topic="out"),
        consuming(bus, other, topic="other"),
    ):
        await out.until(*sent)
        await other.until(*sent)
    assert out.firsts == other.firsts == sent
    assert {m.headers["from"] for m in out.messages} == {"relay"}


async def test_an_attempt_that_failed_publishes_nothing(bus):
    async def fail_at_first(message: Message):
        attempt = message.headers["kairos-attempt"]
        if attempt != "3":
            raise ValueError("not yet")
        return [("out", Message(key="k", value=attempt.encode()))]

    out = Seen()
    await publish(bus, "a")
    async with consuming(bus, fail_at_first), consuming(bus, out, topic="out"):
        await out.until("3")
    assert out.firsts == ["3"]


async def test_a_message_whose_consequences_are_too_large_is_dead_and_none_of_them_goes_out(bus):
    async def say_too_much(message: Message):
        if text(message) == "a":
            small, large = (Message(key="k", value=b"x" * size) for size in (1, 1 << 20))
            return [("out", small), ("out", large)]
        return [("out", message)]

    out, dead = Seen(), Seen()
    await publish(bus, "a", "b")
    async with (
        consuming(bus, say_too_much),
        consuming(bus, out, topic="out"),
        consuming(bus, dead, topic=Topic.DEAD_LETTERS),
    ):
        await dead.until("a")
        await out.until("b")
    assert out.firsts == ["b"]
    assert "MessageTooLarge: a message of 1048" in dead.messages[0].headers["kairos-dead-reason"]


async def test_a_consumer_that_is_slow_gets_everything_in_the_end(bus):
    async def take_a_moment(message: Message) -> None:
        await asyncio.sleep(0.002)

    seen = Seen(take_a_moment)
    sent = [str(n) for n in range(1_000)]
    for start in range(0, 1_000, 100):
        await asyncio.gather(
            *(publish(bus, value, key=f"{int(value) % 7}") for value in sent[start : start + 100])
        )
    async with consuming(bus, seen, concurrency=4):
        await seen.until(*sent)


class TestMemoryBus:
    """What only a bus without a disk must promise: bounded topics."""

    async def test_publishing_to_a_full_topic_waits_until_a_message_is_handled(self):
        bus = MemoryBus(topic_messages=2)
        await publish(bus, "1", "2")
        third = asyncio.create_task(publish(bus, "3"))
        await asyncio.sleep(0)
        assert not third.done()
        seen = Seen()
        async with consuming(bus, seen):
            async with asyncio.timeout(TIMEOUT_S):
                await third
            await seen.until("1", "2", "3")

    async def test_a_topic_is_full_until_its_slowest_group_has_handled_a_message(self):
        bus = MemoryBus(topic_messages=1)
        gate, quick = asyncio.Event(), Seen()

        async def stop_at_1(message: Message) -> None:
            if text(message) == "1":
                await gate.wait()

        slow = Seen(stop_at_1)
        async with consuming(bus, quick, group="quick"), consuming(bus, slow, group="slow"):
            await publish(bus, "0")
            await quick.until("0")
            await slow.until("0")
            await publish(bus, "1")
            await quick.until("1")
            await slow.until("1")
            second = asyncio.create_task(publish(bus, "2"))
            await asyncio.sleep(0)
            assert not second.done()
            gate.set()
            await asyncio.wait_for(second, TIMEOUT_S)

    async def test_a_publisher_that_gives_up_leaves_its_room_to_others(self):
        bus = MemoryBus(topic_messages=1)
        await publish(bus, "1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await publish(bus, "2")
        seen = Seen()
        async with consuming(bus, seen):
            await seen.until("1")
            async with asyncio.timeout(TIMEOUT_S):
                await publish(bus, "3", "4")
            await seen.until("3", "4")
        assert "2" not in seen.values

    async def test_dead_letters_that_nobody_reads_never_stop_the_living(self):
        bus = MemoryBus(topic_messages=1)
        seen = Seen(fail)
        async with consuming(bus, seen), asyncio.timeout(TIMEOUT_S):
            await publish(bus, "1", "2", "3", "4")
            await seen.until("1", "2", "3", "4")

    async def test_a_group_that_comes_late_sees_the_last_thousand_handled_messages(self):
        bus = MemoryBus()
        early, late = Seen(), Seen()
        sent = [str(n) for n in range(1_005)]
        async with consuming(bus, early, group="early"):
            await publish(bus, *sent)
            await early.until(*sent)
            await publish(bus, "end")
            await early.until("end")
        async with consuming(bus, late, group="late"):
            await late.until("end")
        assert late.firsts[-1000:] == [*sent, "end"][-1000:]
        assert "0" not in late.values
