"""`kairos orchestrate` on a real Kafka: killed, replaced, stopped, and looked into."""

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from hashlib import sha256
from random import Random

import aiohttp
import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kairos.agent import USER
from kairos.cluster import (
    POOL_HEADER,
    TAKEOVER_HEADER,
    TOLD,
    TYPE_HEADER,
    Envelope,
    Producer,
    ReceivedMessage,
    Told,
    ensure_topics,
    write_message,
)
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.profiles_topic import follow
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.orchestrate.service import TOPICS
from kairos.cluster.pool.messages import EPOCH
from kairos.core import (
    Arrived,
    KairosError,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Record,
    Topic,
    WorkflowEnded,
)
from kairos.observe import explain, workflow_snapshot, workflow_view
from kairos.settings import TlsFiles
from tests.support.cluster.impatient import SAVE_S
from tests.support.ports import free_ports
from tests.support.processes import Process
from tests.support.simulate import build

pytestmark = pytest.mark.kafka

GROUP = "kairos.orchestrator"
TIMEOUT_S = 60
FOLLOWS = "this process follows the events"


class World:
    """The topics, empty at first, and orchestrators on them."""

    def __init__(self, broker, directory, stack):
        self.bus, self.connection = broker.url, parse_bus(broker.url)
        self.admin = AdminClient({"bootstrap.servers": broker.servers})
        self.directory, self.stack = directory, stack
        self.number = 0

    async def begin(self):
        for group in (GROUP, f"{GROUP}.results"):
            with suppress(KafkaException):
                self.admin.delete_consumer_groups([group])[group].result()
        for gone in self.admin.delete_topics([*TOPICS]).values():
            with suppress(KafkaException):
                gone.result()
        while set(TOPICS) & set(self.admin.list_topics(timeout=60).topics):
            await asyncio.sleep(0.05)
        await ensure_topics(self.connection, TOPICS)
        self.producer = await self.stack.enter_async_context(Producer(self.connection))
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())
        self.epoch = await self.producer.send(
            Topic.EVENTS, "default", None, {TAKEOVER_HEADER: "balancer", POOL_HEADER: "default"}
        )

    async def write(self, records):
        headers = {POOL_HEADER: "default", EPOCH: str(self.epoch)}
        sent = [
            self.producer.send(Topic.EVENTS, "key", msgspec.json.encode(each), headers)
            for each in records
        ]
        return (await asyncio.gather(*sent))[-1]

    def orchestrator(self, *options):
        self.number += 1
        [port] = free_ports(1)
        command = ("orchestrate", "--bus", self.bus, "--port", port, *options)
        name, module = f"orchestrator-{self.number}", "tests.support.cluster.impatient"
        process = Process(self.directory, name, *command, module=module)
        process.url = f"http://127.0.0.1:{port}"
        self.stack.callback(process.kill)
        return process.start()

    async def ask(self, process, path, method="GET", **headers):
        async with self.session.request(method, process.url + path, headers=headers) as response:
            content = await response.read()
            return response.status, msgspec.json.decode(content)

    async def until_learnt(self, offset):
        """All that is before the offset has been learnt, published and committed."""
        asked = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(Topic.EVENTS, 0)])
        while True:
            answer = self.admin.list_consumer_group_offsets([asked])[GROUP].result()
            [committed] = answer.topic_partitions
            if committed.metadata and msgspec.json.decode(committed.metadata)["learnt"] >= offset:
                return committed.offset
            await asyncio.sleep(0.1)

    async def known(self):
        async with aclosing(follow(self.connection)) as published:
            return await anext(published)


@pytest.fixture
async def world(broker, tmp_path):
    async with AsyncExitStack() as stack:
        world = World(broker, tmp_path, stack)
        await world.begin()
        yield world


def history(seed, requests=200):
    """What a balancer decided, and that every other workflow ended when its calls had. In two
    parts, with as many ends each."""
    log = [
        r
        for r in build.simulate(seed, requests=requests)[0]
        if not isinstance(r.event, ProfilesLearnt)
    ]
    workflow_of, last = {}, {}
    for n, record in enumerate(log):
        if isinstance(record.event, Arrived):
            workflow_of[record.event.request.id] = record.event.request.workflow_id
            last[record.event.request.workflow_id] = n
        elif (request_id := getattr(record.event, "request_id", None)) is not None:
            last[workflow_of[request_id]] = n
    ended = {n: name for name, n in last.items() if n % 2}
    records = []
    for n, record in enumerate(log):
        records.append(record)
        if n in ended:
            records.append(Record(record.at, WorkflowEnded("default", ended[n])))
    ends = [n for n, record in enumerate(records) if isinstance(record.event, WorkflowEnded)]
    middle = ends[len(ends) // 2]
    return records[:middle], records[middle:]


class Undisturbed:
    """An orchestrator that never stopped."""

    def __init__(self, *parts):
        self.learner = Learner(Orchestrator())
        for records in parts:
            for record in records:
                self.learner.observe(record)
        self.learner.step()

    def workflows(self):
        orchestrator = self.learner.orchestrator
        return {each.key[1]: each for each in orchestrator._open.all()}

    def counts(self):
        """Calls learnt, by agent."""
        found = self.learner.orchestrator.profiles.status("default")
        return Counter({(each.app, each.agent): each.samples for each in found})


async def counts(world, process):
    _, agents = await world.ask(process, "/v1/agents")
    return Counter({(each["app"], each["agent"]): each["samples"] for each in agents["data"]})


async def check_workflows(world, process, undisturbed):
    """It shows the same of every open workflow, calls and graph."""
    expected = undisturbed.workflows()
    assert len(expected) > 10
    for name, workflow in expected.items():
        status, view = await world.ask(process, f"/v1/workflows/{name}")
        assert status == 200, (name, view)
        shown = workflow_view(workflow_snapshot(workflow, 10**18), 0, 1000)
        assert of_ended_calls(view) == of_ended_calls(
            msgspec.json.decode(msgspec.json.encode(shown))
        )


async def until_all_was_read(world, process, undisturbed):
    while True:
        with suppress(AssertionError):
            return await check_workflows(world, process, undisturbed)
        await asyncio.sleep(0.02)


def of_ended_calls(view):
    """How long the others have lasted depends on when it is asked."""
    return view | {"calls": [call for call in view["calls"] if call["ended_at"] is not None]}


async def test_killed_once_all_was_committed_it_knows_what_one_that_never_stopped_knows(world):
    first, second = history(1)
    process = world.orchestrator()
    end = await world.write(first)
    committed_at = await world.until_learnt(end + 1)
    process.kill()
    end = await world.write(second)
    process.start()
    await process.until_it_says(FOLLOWS)
    await world.until_learnt(end + 1)

    assert committed_at < end  # there were open workflows to be read again
    undisturbed = Undisturbed(first, second)
    await check_workflows(world, process, undisturbed)
    # What was published is restored as 64 calls at most; here no agent has as many.
    found, expected = await counts(world, process), undisturbed.counts()
    assert {k: n for k, n in found.items() if k[1] != "*"} == {
        k: n for k, n in expected.items() if k[1] != "*"
    }
    assert 5 < max(n for k, n in expected.items() if k[1] != "*") < 64


@pytest.mark.smoke
async def test_killed_at_any_time_it_forgets_nothing_and_learns_little_twice(world):
    first, second = history(2, requests=150)
    process = world.orchestrator()
    third = len(first) // 3
    for part in (first[:third], first[third : 2 * third], first[2 * third :]):
        await world.write(part)
        await process.until_it_says(FOLLOWS)
        await asyncio.sleep(Random(len(part)).uniform(0, SAVE_S))
        process.kill()
        process.start()
    end = await world.write(second)
    await process.until_it_says(FOLLOWS)
    await world.until_learnt(end + 1)

    undisturbed = Undisturbed(first, second)
    await check_workflows(world, process, undisturbed)
    found, expected = await counts(world, process), undisturbed.counts()
    assert set(found) == set(expected)
    for key, count in expected.items():
        assert min(count, 64) <= found[key] <= 3 * count, (key, found[key], count)


async def test_another_takes_over_and_shows_what_the_first_one_showed(world):
    first, second = history(3)
    active = world.orchestrator()
    await active.until_it_says(FOLLOWS)
    standby = world.orchestrator()
    await standby.until_it_says("workflows and agents")
    await world.write(first)
    status, body = await world.ask(standby, "/v1/agents")
    assert (status, body["error"]["code"]) == (503, "unavailable")

    active.kill()
    end = await world.write(second)
    await standby.until_it_says(FOLLOWS)
    await world.until_learnt(end + 1)

    await check_workflows(world, standby, Undisturbed(first, second))


async def test_told_to_stop_it_publishes_and_commits_and_leaves(world):
    first, _ = history(4)
    process = world.orchestrator()
    await process.until_it_says(FOLLOWS)
    end = await world.write(first)
    async with asyncio.timeout(TIMEOUT_S):
        await until_all_was_read(world, process, Undisturbed(first))
    status = await asyncio.to_thread(process.stop)

    assert status == 0, process.said
    async with asyncio.timeout(TIMEOUT_S):
        await world.until_learnt(end + 1)
    known = await world.known()
    published = {p.key[1:]: p.samples for p in known.profiles if p.tenant == "default"}
    assert published == dict(Undisturbed(first).counts())
    assert len(published) > 4
    assert known.ranks


async def test_results_and_clients_say_that_workflows_have_ended(world):
    first, _ = history(5, requests=60)
    process = world.orchestrator("--pool", "blue")
    await process.until_it_says(FOLLOWS)
    await world.write(first)
    name = next(iter(Undisturbed(first).workflows()))
    envelope = Envelope(
        workflow_id="from-a-result",
        app="qa",
        agent=USER,
        upstream="expert",
        started_at=1,
        traceparent=f"00-{'1' * 32}-{'2' * 16}-01",
    )
    result = write_message(envelope, {"answer": 42})

    await world.producer.send(Topic.RESULTS, "nonsense", b"{}", {"kairos-msg-id": "other"})
    await world.producer.send(Topic.RESULTS, result.key, result.value, result.headers)
    told = [each async for each in ends(world, 1)]
    while (await world.ask(process, f"/v1/workflows/{name}"))[0] != 200:
        await asyncio.sleep(0.02)
    status, body = await world.ask(process, f"/v1/workflows/{name}/end", "POST")
    told = [each async for each in ends(world, 2)]

    assert status == 202
    assert body == {"id": name, "object": "workflow", "ended_at": None}
    assert [each.event for each in told] == [
        WorkflowEnded("default", "from-a-result"),
        WorkflowEnded("default", name),
    ]


async def ends(world, count):
    """The first messages to the balancer of the pool "blue"."""
    async with Subscription(world.connection, [Topic.REQUESTS]) as requests:
        while count:
            for item in await requests.batch():
                if isinstance(item, ReceivedMessage):
                    assert (item.key, item.headers) == ("blue", {TYPE_HEADER: TOLD})
                    yield msgspec.json.decode(item.value, type=Told)
                    count -= 1


async def test_it_is_looked_into_with_a_key_and_its_figures_without(world, tmp_path):
    keys = tmp_path / "kairos.toml"
    digest = sha256(b"secret").hexdigest()
    keys.write_text(f'[[key]]\nsha256 = "{digest}"\ntenant = "default"\n')
    first, _ = history(6)
    process = world.orchestrator("--config", keys)
    await process.until_it_says(FOLLOWS)
    end = await world.write([*first])
    await world.until_learnt(end + 1)
    name = next(iter(Undisturbed(first).workflows()))

    status, _ = await world.ask(process, f"/v1/workflows/{name}")
    assert status == 401
    explained = partial(explain.explain_from_service, process.url, files=TlsFiles())
    view = await asyncio.to_thread(explained, key="secret", workflow_id=name)
    assert view.id == name
    assert view.calls
    async with world.session.get(f"{process.url}/metrics") as response:
        figures = await response.text()
    assert "kairos_orchestrator_active 1.0" in figures
    assert f"kairos_orchestrator_records_total {float(len(first))}" in figures
    assert f"kairos_workflows_open {float(len(Undisturbed(first).workflows()))}" in figures
    async with world.session.get(f"{process.url}/health") as response:
        assert response.status == 200

    digest = sha256(b"another").hexdigest()
    keys.write_text(f'[[key]]\nsha256 = "{digest}"\ntenant = "default"\n')
    os.kill(process.pid, signal.SIGHUP)
    await process.until_it_says("the settings were read again; changed: key")
    with pytest.raises(KairosError):
        await asyncio.to_thread(explained, key="secret", workflow_id=name)
    assert (await asyncio.to_thread(explained, key="another", workflow_id=name)).id == name


async def test_without_a_bus_it_says_how_to_name_one(tmp_path):
    process = Process(tmp_path, "orchestrator", "orchestrate", fresh=True).start()
    try:
        while process._process.poll() is None:
            await asyncio.sleep(0.05)
        assert "name the bus: kairos orchestrate --bus kafka://HOST:PORT" in process.said
    finally:
        process.kill()


async def test_the_topics_hold_what_was_learnt_of_each_agent(world):
    first, second = history(7)
    process = world.orchestrator()
    end = await world.write(first + second)
    await world.until_learnt(end + 1)

    keys = set()
    async with Subscription(world.connection, [Topic.PROFILES]) as profiles:
        async with asyncio.timeout(TIMEOUT_S):
            while not any(key.startswith('["kendall_tau"') for key in keys):
                keys |= {i.key for i in await profiles.batch() if isinstance(i, ReceivedMessage)}
    assert '["profile","default","app0","agent0"]' in keys
    assert '["model","default","app0"]' in keys
    assert '["rank","default","app0","agent0"]' in keys
    assert process.stop() == 0
