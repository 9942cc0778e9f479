"""What travels on a real Kafka for an LLM call is what the JSON Schema says."""

import asyncio
import uuid

import msgspec
import pytest

from kairos.agents.bus_llm import BusLLM
from kairos.cluster import Producer, ReceivedMessage
from kairos.cluster.kafka import topic_setup
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.pool.bus_calls import BusAnswer
from kairos.core import Topic
from tests.support.schema import as_object, problems

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
CALLER = {
    "X-Kairos-Workflow-Id": "w",
    "X-Kairos-App": "qa",
    "X-Kairos-Agent": "router",
    "X-Kairos-Upstream": "user",
    "X-Kairos-Started-At": "5",
    "X-Kairos-Attempt": "1",
    "X-Kairos-Deadline": "100000000000000000",
    "X-Request-Id": "2222222222222222-1",
    "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
}
COMPLETION = {"choices": [{"message": {"role": "assistant", "content": "hi"}}]}


async def next_of(requests, pool):
    """The next message of the pool, which is this test's alone."""
    while True:
        for item in await requests.batch():
            if isinstance(item, ReceivedMessage) and item.key == pool:
                return item


async def answer(status, body, headers=()):
    """What a pool replies with when the engine says this."""
    said = BusAnswer()
    said.start(status, headers)
    said.write(body, more=False)
    return said.payload()


@pytest.mark.kafka
async def test_an_llm_call_its_reply_and_its_cancellation_are_valid(kafka):
    connection, pool = parse_bus(kafka), f"schema-{uuid.uuid4().hex[:8]}"
    async with asyncio.timeout(60):
        llm = BusLLM(connection, pool=pool, name=pool)
        await topic_setup.ensure_topics(connection, [Topic.REQUESTS, llm.replies])
        async with (
            llm,
            Producer(connection) as producer,
            Subscription(connection, [Topic.REQUESTS]) as all_,
        ):
            asking = asyncio.create_task(llm.complete(BODY, CALLER))
            call = await next_of(all_, pool)
            assert problems("call", as_object(call)) == []

            value = await answer(200, msgspec.json.encode(COMPLETION))
            name = {"kairos-request-id": call.headers["kairos-request-id"]}
            reply = {"headers": name, "value": msgspec.json.decode(value)}
            assert problems("reply", reply) == []
            await producer.send(call.headers["kairos-reply-to"], "w", value, name)
            assert await asking == COMPLETION

            asking = asyncio.create_task(llm.complete(BODY, CALLER))
            await next_of(all_, pool)
            asking.cancel()
            cancellation = await next_of(all_, pool)
            assert problems("cancellation", as_object(cancellation)) == []


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b'{"choices": []}', ()),
        (429, b'{"error": {"message": "too many"}}', [(b"retry-after", b"1")]),
        (502, b"<html>", ()),
        (500, b"\xff", ()),
        (504, b"", ()),
    ],
)
async def test_whatever_an_engine_says_the_reply_is_valid(status, body, headers):
    value = msgspec.json.decode(await answer(status, body, headers))

    assert problems("reply", {"headers": {"kairos-request-id": "r"}, "value": value}) == []
