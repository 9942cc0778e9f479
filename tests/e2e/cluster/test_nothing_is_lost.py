"""Three applications as processes over a real Kafka, under load, while everything is killed once:
each workflow ends once, with the answer that a quiet run gives, and its graph is as it was."""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack

import aiohttp
import msgspec
import pytest

from kairos import agent
from kairos.agent import read_result
from kairos.cluster import (
    CALL,
    TAKEOVER_HEADER,
    TOLD,
    TYPE_HEADER,
    KafkaBus,
    MemoryBus,
    ReceivedMessage,
    Told,
    read_envelope,
)
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.items import CaughtUp
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.pool.messages import EPOCH
from kairos.core import SECOND, Arrived, Message, Orchestrator, Record, Topic
from kairos.proxy import HttpLLM
from tests.support.cli.command import SCRIPT, Demo, plan_submissions
from tests.support.kafka import Broker
from tests.support.ports import free_ports
from tests.support.processes import Process

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

WORKFLOWS = 150
RATE = 2.5  # per second
BROKER_DOWN_S = 12  # longer than sessions and transactions
GATEWAY_DEATHS = 2
SLOTS = 8  # of both engines
LIMIT_S = 240  # for what is left after the last blow
SHOWN_WITHIN_S = 60  # a transaction's timeout and Kafka's check for it come to 11
MODULES = {"qa": "agents.qa", "rg": "agents.rg", "cg": "agents.cg"}


def plan():
    at_us = [int(n / RATE * SECOND) for n in range(WORKFLOWS)]
    return plan_submissions(Demo(workflows=WORKFLOWS, seed=5), at_us)


def now_us():
    return time.time_ns() // 1000


async def quiet_answers(submissions, engine_url):
    """What the same tasks come to in one process, where nothing goes wrong."""
    bus, answers, done = MemoryBus(), {}, asyncio.Event()

    async def take(message):
        result = read_result(message)
        answers[result.workflow_id] = result.value
        if len(answers) == len(submissions):
            done.set()

    applications = {each.app.name: each.app for each in submissions}.values()
    async with HttpLLM(f"{engine_url}/v1", model="standin") as llm, asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(agent.run(applications, bus, llm)),
            tasks.create_task(bus.consume(Topic.RESULTS, "user", take)),
        ]
        for number, each in enumerate(submissions):
            await agent.submit(bus, each.app, each.value, now_us=now_us(), msg_id=f"w-{number}")
        await done.wait()
        for task in running:
            task.cancel()
    return answers


async def read_all(connection, *topics, group=None):
    """Everything that is in the topics now; with a group, what it has yet to do."""
    received, open_partitions = [], None
    async with asyncio.timeout(60), Subscription(connection, topics, group) as messages:
        while open_partitions is None or open_partitions:
            for item in await messages.batch():
                if isinstance(item, ReceivedMessage):
                    received.append(item)
                elif isinstance(item, CaughtUp):
                    if open_partitions is None:
                        open_partitions = await partitions_of(connection, topics)
                    open_partitions.discard((item.topic, item.partition))
    return received


async def partitions_of(connection, topics):
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": connection.servers})
    listed = (await asyncio.to_thread(client.list_topics, timeout=60)).topics
    return {(topic, number) for topic in topics for number in listed[topic].partitions}


class Deployment:
    """Kafka, two stand-ins, and each kind of process of Kairos."""

    def __init__(self, directory, stack):
        directory.mkdir(exist_ok=True)
        self.broker = stack.enter_context(Broker(directory / "kafka"))
        self.connection = parse_bus(self.broker.url)
        engine_ports, (gateway, admin, balancer, orchestrator) = free_ports(2), free_ports(4)
        self.orchestrator_url = f"http://127.0.0.1:{orchestrator}"
        self.engine_urls = [f"http://127.0.0.1:{port}" for port in engine_ports]
        bus = ("--bus", self.broker.url)
        engines = [
            text
            for url in self.engine_urls
            for text in ("--engine", f"{url},max_num_seqs={SLOTS // 2}")
        ]
        http = ("--url", f"http://127.0.0.1:{gateway}")
        commands = {
            "balancer": ("balance", *bus, *engines, "--port", balancer),
            "gateway": ("serve", *bus, *engines, "--port", gateway, "--admin-port", admin),
            "orchestrator": ("orchestrate", *bus, "--port", orchestrator),
            "qa": ("agents", "run", "agents.qa", *bus, *http),
            "rg": ("agents", "run", "agents.rg", *bus, *http),
            "cg": ("agents", "run", "agents.cg", *bus, "--llm", "bus", "--model", "standin"),
            "more": ("agents", "run", "agents.qa", "agents.rg", *bus, *http),
        }
        self.processes = {
            f"engine-{number}": self._engine(directory, number, port)
            for number, port in enumerate(engine_ports, start=1)
        } | {name: Process(directory, name, *command) for name, command in commands.items()}
        for process in self.processes.values():
            stack.callback(process.kill)

    def _engine(self, directory, number, port):
        options = (
            "--port",
            port,
            "--max-num-seqs",
            SLOTS // 2,
            "--step-ms",
            4,
            "--step-per-seq-ms",
            1,
        )
        answers = ("--script", SCRIPT, "--seed", 1)
        module = "kairos.simulate.standin.server"
        return Process(directory, f"engine-{number}", *options, *answers, module=module)

    async def start(self, *names):
        for name in names:
            self.processes[name].start()

    def state(self):
        """How each process does, and the last that it said."""
        return "\n".join(
            f"== {name}: {'runs' if each.runs else 'ended'}\n" + each.log.read_text()[-1500:]
            for name, each in self.processes.items()
        )

    async def crash(self, name, seconds=1.0):
        """Kill it, and start it again after a while."""
        self.processes[name].kill()
        await asyncio.sleep(seconds)
        self.processes[name].start()

    async def crash_broker(self, seconds):
        self.broker.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.broker.start)


async def blows(deployment):
    """One after another, each kind of process dies and comes back; consumers come and go."""
    pause = 3
    for name in ("qa", "gateway", "balancer", "orchestrator", "cg"):
        await deployment.crash(name)
        await asyncio.sleep(pause)
    await deployment.start("more")
    await asyncio.sleep(pause)
    await deployment.crash("rg")
    await asyncio.sleep(pause)
    await deployment.crash_broker(BROKER_DOWN_S)
    await asyncio.sleep(pause)
    await asyncio.to_thread(deployment.processes["more"].stop)
    await deployment.crash("engine-1")
    await asyncio.sleep(pause)
    await deployment.crash("gateway")  # whichever of the two decides by now, both have died
    await deployment.crash("balancer")


class Collected:
    """Results as they come, and when the last was there."""

    def __init__(self):
        self.all = []
        self.changed = asyncio.Event()

    async def collect(self, connection):
        async with Subscription(connection, [Topic.RESULTS]) as messages:
            while True:
                items = await messages.batch()
                self.all += [item for item in items if isinstance(item, ReceivedMessage)]
                self.changed.set()

    async def until(self, count):
        while len({each.key for each in self.all}) < count:
            self.changed.clear()
            await self.changed.wait()


async def submit_all(submissions, connection):
    began = time.monotonic()
    async with KafkaBus(connection) as bus:
        for number, each in enumerate(submissions):
            await asyncio.sleep(max(0, began + each.at_us / SECOND - time.monotonic()))
            await agent.submit(bus, each.app, each.value, now_us=now_us(), msg_id=f"w-{number}")


def true_graphs(tasks):
    """By workflow: the calls of each task that was handed over, and what led to each.

    Every agent of the three applications makes one call for a task.
    """
    graphs = {}
    for task in tasks:
        envelope = read_envelope(Message(key=task.key, value=task.value, headers=task.headers))
        call = envelope.traceparent.split("-")[2] + "-1"
        graph = graphs.setdefault(envelope.workflow_id, {})
        assert call not in graph, "a task was handed over twice"
        graph[call] = (envelope.agent, (envelope.parent,) if envelope.parent else ())
    return graphs


def rebuilt_graphs(events):
    """By workflow, from the facts alone, as `kairos orchestrate` reads them."""
    newest, decoder, orchestrator = -1, msgspec.json.Decoder(Record), Orchestrator()
    for item in events:
        if TAKEOVER_HEADER in item.headers:
            newest = item.offset
        elif int(item.headers[EPOCH]) >= newest:
            orchestrator.observe(decoder.decode(item.value))
    graphs = {}
    for number in range(WORKFLOWS):
        workflow = orchestrator.workflow("default", f"w-{number}")
        nodes = workflow.graph().nodes.values()
        graphs[f"w-{number}"] = {
            node.span.id: (node.span.agent, node.parents, node.span.outcome) for node in nodes
        }
    return graphs


def told_to_the_end(graphs):
    """The graphs without outcomes. Each call was told to have finished, but for those that were
    answered just when their gateway died: the answer was out, and the fact of it was not."""
    untold = [
        (workflow, call)
        for workflow, graph in graphs.items()
        for call, (_, _, outcome) in graph.items()
        if outcome != "finished"
    ]
    assert len(untold) <= GATEWAY_DEATHS * SLOTS, untold
    return {
        workflow: {call: (agent, parents) for call, (agent, parents, _) in graph.items()}
        for workflow, graph in graphs.items()
    }


async def left_behind(connection, inboxes):
    """Messages that their group has not done, and calls that have not ended."""
    undone = []
    for inbox in inboxes:
        undone += await read_all(connection, inbox, group=inbox)
    waiting = await read_all(connection, Topic.REQUESTS, group="kairos.balancer.default")
    told = msgspec.json.Decoder(Told)
    for item in waiting:
        kind = item.headers.get(TYPE_HEADER)
        if kind == CALL or (kind == TOLD and isinstance(told.decode(item.value).event, Arrived)):
            undone.append(item)
    return undone


async def shown_graphs(url, expected):
    """The same graphs, as the orchestrator shows them: one that was killed amid all this. It may
    come to know them late: a balancer that was killed within a transaction holds up the events."""
    shown = {}
    try:
        async with asyncio.timeout(SHOWN_WITHIN_S), aiohttp.ClientSession() as session:
            while (shown := {w: await shown_graph(session, url, w) for w in expected}) != expected:
                await asyncio.sleep(1)
    except TimeoutError:
        pass  # what is wrong with them is said by the comparison
    return shown


async def shown_graph(session, url, workflow):
    async with session.get(f"{url}/v1/workflows/{workflow}") as response:
        answer = await response.json()
        if response.status != 200:
            return answer
    return {call["id"]: (call["agent"], tuple(call["parents"])) for call in answer["calls"]}


async def test_every_workflow_ends_once_and_as_in_a_quiet_run_whatever_dies(tmp_path):
    submissions = plan()
    inboxes = {
        app.inbox(name)
        for app in {s.app.name: s.app for s in submissions}.values()
        for name in app.agents
    }
    with ExitStack() as stack:
        deployment = Deployment(tmp_path / "run", stack)
        await deployment.start("engine-1", "engine-2")
        for name in ("engine-1", "engine-2"):
            await deployment.processes[name].until_it_says("ready")
        expected = await quiet_answers(submissions, deployment.engine_urls[0])
        await deployment.start("balancer", "gateway", "orchestrator", "qa", "rg", "cg")
        for name, ready in {
            "gateway": "serving on",
            "qa": "ready",
            "rg": "ready",
            "cg": "ready",
        }.items():
            await deployment.processes[name].until_it_says(ready)

        collected = Collected()
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(collected.collect(deployment.connection))
            submitting = tasks.create_task(submit_all(submissions, deployment.connection))
            await blows(deployment)
            await submitting
            try:
                async with asyncio.timeout(LIMIT_S):
                    await collected.until(WORKFLOWS)
            except TimeoutError:
                print(deployment.state())  # what is missing is said below
            collecting.cancel()
        seconds = time.monotonic() - began
        handed_over = await read_all(deployment.connection, *inboxes)
        true = true_graphs(handed_over)
        last = {
            f"w-{number}": true.get(f"w-{number}") for number in range(WORKFLOWS - 50, WORKFLOWS)
        }
        shown = await shown_graphs(deployment.orchestrator_url, last)
        for name in ("gateway", "balancer", "orchestrator", "qa", "rg", "cg"):
            await asyncio.to_thread(deployment.processes[name].stop)

        results = await read_all(deployment.connection, Topic.RESULTS)  # a second end, too
        events = await read_all(deployment.connection, Topic.EVENTS)
        dead = await read_all(deployment.connection, Topic.DEAD_LETTERS)
        undone = await left_behind(deployment.connection, inboxes)

    ends = Counter(each.key for each in results)
    takeovers = sum(TAKEOVER_HEADER in each.headers for each in events)
    print(
        f"\n{WORKFLOWS} workflows, {len(handed_over)} messages between agents, {len(events)} facts,"
        f" {takeovers} takeovers; {len(ends)} ended, {sum(n > 1 for n in ends.values())} of them"
        f" more than once; {len(dead)} dead letters, {len(undone)} messages left behind;"
        f" {seconds:.0f} s"
    )
    assert ends == Counter(f"w-{number}" for number in range(WORKFLOWS))
    answers = {each.key: msgspec.json.decode(each.value) for each in results}
    assert answers == expected
    assert dead == []
    assert undone == []
    assert takeovers >= 2
    assert told_to_the_end(rebuilt_graphs(events)) == true
    assert shown == last
