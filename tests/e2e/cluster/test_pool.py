"""One pool of engines and several processes of Kairos before it, on a real Kafka."""

import asyncio
import os
import re
import secrets
import signal
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest

from kairos.cluster import CALL, TYPE_HEADER, Producer, ReceivedMessage, ensure_topics
from kairos.cluster import POOL_HEADER as IN_POOL
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.pool.messages import EPOCH, PERFORMER, TURN
from kairos.core import SetupError, Topic
from kairos.service import running
from kairos.settings import EngineSettings, Settings
from tests.e2e.client import LIMIT_S
from tests.support.buses import until_logged
from tests.support.cli.command import CHECKED, check_bus, skip_record
from tests.support.cluster.impatient import SESSION_S
from tests.support.observe.figures import left_out
from tests.support.ports import free_ports
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class Pool:
    """Gateways of one pool in this process, and processes that a test can kill."""

    def __init__(self, bus, engine, directory, stack, max_num_seqs=2):
        self.bus, self.name = bus, f"test-{secrets.token_hex(4)}"
        self.connection = parse_bus(bus)
        self._engine = EngineSettings(url=engine.url, max_num_seqs=max_num_seqs)
        self._directory, self._stack = directory, stack

    async def gateway(self, **given):
        """One in this process, once it sees the engine."""
        settings = Settings(
            bus=self.bus, pool=self.name, engine=(self._engine,), port=0, admin_port=0, **given
        )
        service = await self._stack.enter_async_context(running(settings))
        await service.monitor.all_joined.wait()
        return service

    async def process(self, *command, session_s=SESSION_S):
        """A process of the pool that decides, where none does yet."""
        engine = f"{self._engine.url},max_num_seqs={self._engine.max_num_seqs}"
        options = ("--bus", self.bus, "--pool", self.name, "--engine", engine)
        name = f"{command[0]}-{secrets.token_hex(2)}"
        environ = {"KAIROS_TEST_SESSION_S": str(session_s)}
        module = "tests.support.cluster.impatient"
        process = Process(self._directory, name, *command, *options, module=module, environ=environ)
        self._stack.callback(process.kill)
        process.start()
        return process

    async def balancer(self, session_s=SESSION_S):
        process = await self.process("balance", "--port", "0", session_s=session_s)
        await process.until_it_says("this process decides")
        return process


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def pool(kafka, engine, tmp_path, stack):
    return Pool(kafka, engine, tmp_path, stack)


async def ask(session, service, name, **headers):
    async with session.post(
        f"{service.url}/v1/chat/completions", json=BODY, headers={"X-Request-Id": name, **headers}
    ) as response:
        return response.status, await response.json()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def decides(service):
    await until(lambda: service.brain.member.active is not None)


async def test_a_gateway_before_a_standby_works_like_any_other(pool, engine, session):
    one, other = await pool.gateway(), await pool.gateway()
    await until(lambda: one.brain.member.active or other.brain.member.active)
    answers = await asyncio.gather(
        *(ask(session, each, f"{n}") for n, each in enumerate([one, other] * 4))
    )
    assert [status for status, _ in answers] == [200] * 8
    assert sorted(call.headers["x-request-id"] for call in engine.calls) == list("01234567")
    decide = []
    for each in (one, other):
        async with session.get(f"{each.admin_url}/admin/status") as response:
            decide.append((await response.json())["decides"])
    assert sorted(decide) == [False, True]


async def test_refusals_reach_clients_of_a_gateway_whose_balancer_is_elsewhere(pool, session):
    await pool.balancer()
    service = await pool.gateway()
    async with session.post(
        f"{service.url}/v1/chat/completions", json={**BODY, "model": "unknown"}
    ) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.smoke
async def test_a_balancer_that_dies_is_replaced_and_running_calls_are_not_run_twice(
    pool, engine, session
):
    engine.answer = engine.when_released
    balancer = await pool.balancer()
    service = await pool.gateway()
    calls = [asyncio.create_task(ask(session, service, f"c{n}")) for n in range(6)]
    await until(lambda: len(engine.calls) == 2)
    balancer.kill()
    late = asyncio.create_task(ask(session, service, "late"))
    await decides(service)
    await until(lambda: service.brain.balancer.waiting == 5)
    assert len(engine.calls) == 2, "the two that run fill the engine"
    for _ in range(7):
        engine.turns.release()
    answers = await asyncio.gather(*calls, late)
    assert [status for status, _ in answers] == [200] * 7
    assert sorted(call.headers["x-request-id"] for call in engine.calls) == [
        *(f"c{n}" for n in range(6)),
        "late",
    ]


async def test_a_balancer_that_leaves_in_order_is_replaced_at_once(pool, engine, session):
    engine.answer = engine.when_released
    balancer = await pool.balancer(session_s=3 * LIMIT_S)  # taken for dead, it would be long after
    service = await pool.gateway()
    calls = [asyncio.create_task(ask(session, service, f"c{n}")) for n in range(4)]
    await until(lambda: len(engine.calls) == 2)
    assert await asyncio.to_thread(balancer.stop) == 0
    await decides(service)
    for _ in range(4):
        engine.turns.release()
    answers = await asyncio.gather(*calls)
    assert [status for status, _ in answers] == [200] * 4
    assert len(engine.calls) == 4


@pytest.mark.smoke
async def test_the_room_of_a_killed_gateway_is_given_to_others(pool, engine, session):
    engine.answer = engine.when_released
    await pool.balancer()
    port, admin = free_ports(2)
    doomed = await pool.process("serve", "--port", port, "--admin-port", admin)
    await doomed.until_it_says("serves tiny")
    survivor = await pool.gateway()

    async def ask_doomed(number):
        async with session.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY
        ) as response:
            return await response.read()

    lost = [asyncio.create_task(ask_doomed(n)) for n in range(4)]
    await until(lambda: len(engine.calls) == 2)
    doomed.kill()
    await asyncio.gather(*lost, return_exceptions=True)
    call = asyncio.create_task(ask(session, survivor, "after"))
    await until(lambda: len(engine.calls) == 3)
    assert engine.calls[2].headers["x-request-id"] == "after"
    for _ in range(3):
        engine.turns.release()
    assert (await call)[0] == 200


EPOCH_OF_NOBODY = str(10**17)
TICK = b'{"at":1,"event":{"type":"Tick"}}'
POLICY = b'{"at":1,"event":{"type":"PolicyChosen","policy":"os:system"}}'
QUOTA = (
    b'{"at":1,"event":{"type":"EntitlementsChanged","entitlements":'
    b'{"quotas":[{"tenant":"t","calls_at_once":0}]}}}'
)


def forged(pool, epoch):
    """Return records that once ended a process, made it deaf or kept it from starting."""
    order = {EPOCH: epoch, PERFORMER: "p"}
    record = {IN_POOL: pool, EPOCH: epoch}
    learnt = b'{"type":"ProfilesLearnt","kendall_tau":1e300}'
    return [
        (Topic.DISPATCHES, pool, b'{"commands":[],"turns":[1]}', order),
        (Topic.DISPATCHES, pool, b'{"commands":[],"turns":[]}', order | {EPOCH: EPOCH_OF_NOBODY}),
        (Topic.EVENTS, "w", POLICY, record),
        (Topic.EVENTS, "w", QUOTA, record),
        (Topic.EVENTS, "w", TICK, record | {TURN: "abc"}),
        (Topic.EVENTS, "w", TICK, record | {EPOCH: EPOCH_OF_NOBODY}),
        (Topic.REQUESTS, pool, b'{"performer":"p","event":{"type":"Finished","request_id":7}}', {}),
        (Topic.PROFILES, '["kendall_tau"]', learnt, {}),
    ]


@pytest.mark.smoke
async def test_forged_records_stop_neither_those_that_run_nor_those_that_start(
    pool, engine, session, stack
):
    balancer, service = await pool.balancer(), await pool.gateway()
    assert (await ask(session, service, "before"))[0] == 200
    producer = await stack.enter_async_context(Producer(pool.connection))
    async with Subscription(pool.connection, [Topic.EVENTS]) as events:
        epoch = None
        while epoch is None:
            for each in await events.batch():
                if isinstance(each, ReceivedMessage) and each.headers.get(IN_POOL) == pool.name:
                    epoch = each.headers.get(EPOCH, epoch)
    for topic, key, value, headers in forged(pool.name, epoch):
        await producer.send(topic, key, value, headers)
    assert (await ask(session, service, "beside"))[0] == 200
    late = await pool.gateway()
    balancer.kill()
    await until(lambda: service.brain.member.active or late.brain.member.active)
    for name, each in (("after", service), ("there", late)):
        assert (await ask(session, each, name))[0] == 200
    lines = []
    checked = await asyncio.to_thread(check_bus, pool.connection, CHECKED, None, lines.append)
    assert checked.wrong == len(lines) >= 8
    assert {Topic.EVENTS, Topic.DISPATCHES, Topic.REQUESTS, Topic.PROFILES} <= {
        each.split("/")[0] for each in lines
    }
    found = left_out()
    assert found[Topic.EVENTS] >= 4  # by whoever took over
    assert found[Topic.DISPATCHES] >= 2


async def test_a_group_is_brought_past_a_record_once_its_processes_have_stopped(
    pool, session, stack
):
    service = await pool.gateway()
    await decides(service)
    group = f"kairos.balancer.{pool.name}"
    at = f"{Topic.REQUESTS}/0@{10**9}"
    with pytest.raises(SetupError, match="stop its processes"):
        await until_committed(pool, session, service, group, at)
    await stack.aclose()
    said = await asyncio.to_thread(skip_record, pool.connection, at, group)
    assert said.startswith(f"{group} goes on at {10**9 + 1} of {Topic.REQUESTS}/0")
    with pytest.raises(SetupError, match="behind it already"):
        await asyncio.to_thread(skip_record, pool.connection, f"{Topic.REQUESTS}/0@3", group)


async def until_committed(pool, session, service, group, at):
    """Skip, once the group has a place."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await ask(session, service, "one")
            try:
                return await asyncio.to_thread(skip_record, pool.connection, at, group)
            except SetupError as error:
                if "has no place" not in str(error):
                    raise


class Caller:
    """Calls over the bus, and counts the answers."""

    def __init__(self, pool):
        self.pool, self.replies = pool, []
        self.topic = f"kairos.replies.{pool.name}"

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        await ensure_topics(self.pool.connection, [self.topic])
        self._producer = await self._stack.enter_async_context(Producer(self.pool.connection))
        reading = await self._stack.enter_async_context(
            Subscription(self.pool.connection, [self.topic])
        )
        self._task = asyncio.create_task(self._read(reading))
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._stack.aclose()
        if not self._task.cancelled():
            self._task.result()  # why no more answers came

    async def _read(self, reading):
        while True:
            for item in await reading.batch():
                if isinstance(item, ReceivedMessage):
                    body = msgspec.json.decode(item.value)
                    self.replies.append((item.headers["kairos-request-id"], body["status"]))

    async def ask(self, name, body=BODY, **headers):
        said = {
            TYPE_HEADER: CALL,
            "kairos-request-id": name,
            "kairos-reply-to": self.topic,
            **headers,
        }
        value = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await self._producer.send(Topic.REQUESTS, self.pool.name, value, said)


@pytest.mark.smoke
async def test_calls_over_the_bus_are_answered_each_once(pool, engine):
    service = await pool.gateway()
    await decides(service)
    async with Caller(pool) as caller:
        for n in range(5):
            await caller.ask(f"b{n}", **{"kairos-msg-id": "w", "kairos-agent": "a"})
        await until(lambda: len(caller.replies) == 5)
        await caller.ask("bad", b"{}")
        await caller.ask("unknown", {**BODY, "model": "unknown"})
        await until(lambda: len(caller.replies) == 6)
    assert sorted(caller.replies) == [*((f"b{n}", 200) for n in range(5)), ("unknown", 404)]


async def test_a_call_over_the_bus_survives_the_balancer_and_is_answered_once(
    pool, engine, session
):
    engine.answer = engine.when_released
    balancer = await pool.balancer()
    async with Caller(pool) as caller:
        for n in range(4):
            await caller.ask(f"b{n}")
        await until(lambda: len(engine.calls) == 2)
        service = await pool.gateway()
        balancer.kill()
        await until(lambda: engine.lost == 2)
        await decides(service)
        await until(lambda: len(engine.calls) == 4)
        for _ in range(6):
            engine.turns.release()
        await until(lambda: len(caller.replies) >= 4)
        await caller.ask("last")  # a second answer to one before would be out before this one
        engine.turns.release()
        await until(lambda: ("last", 200) in caller.replies)
    assert sorted(caller.replies) == [*((f"b{n}", 200) for n in range(4)), ("last", 200)]


async def test_a_call_asked_twice_runs_once(pool, engine):
    engine.answer = engine.when_released
    service = await pool.gateway()
    await decides(service)
    async with Caller(pool) as caller:
        await caller.ask("b")
        await caller.ask("b")
        await until(lambda: len(engine.calls) == 1)
        engine.turns.release()
        # Whoever asks when it has ended is answered, too: the second may come that late.
        await until(lambda: len(caller.replies) >= 1)
        await caller.ask("b")
        await until(lambda: len(caller.replies) >= 2)
    assert len(engine.calls) == 1


async def test_what_makes_no_sense_becomes_a_dead_letter_and_stops_nothing(pool, engine):
    service = await pool.gateway()
    await decides(service)
    async with Producer(pool.connection) as producer, Caller(pool) as caller:
        for kind in ("told", "alive", "call", "other"):
            await producer.send(Topic.REQUESTS, pool.name, b"{]\xff", {TYPE_HEADER: kind})
        await producer.send(Topic.REQUESTS, pool.name, None, {})
        await caller.ask("b")
        await until(lambda: caller.replies == [("b", 200)])
        dead = []
        async with (
            asyncio.timeout(LIMIT_S),
            Subscription(pool.connection, [Topic.DEAD_LETTERS]) as letters,
        ):
            while sum(each.key == pool.name for each in dead) < 5:
                dead += [
                    each for each in await letters.batch() if isinstance(each, ReceivedMessage)
                ]


@pytest.mark.smoke
async def test_a_broker_that_is_away_delays_calls_and_loses_none(
    broker, tmp_path, engine, stack, session, caplog
):
    pool = Pool(broker.url, engine, tmp_path, stack)
    service = await pool.gateway()
    await decides(service)
    assert (await ask(session, service, "before"))[0] == 200
    broker.kill()
    calls = [asyncio.create_task(ask(session, service, f"c{n}")) for n in range(5)]
    await until_logged(caplog, "cannot be reached")
    assert len(engine.calls) == 1
    await asyncio.to_thread(broker.start)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls)
    assert [status for status, _ in answers] == [200] * 5
    assert len(engine.calls) == 6


async def operate(session, service, method, path="", **options):
    url = f"{service.admin_url}/admin/instances{path}"
    async with session.request(method, url, **options) as response:
        return response.status, await response.json()


async def test_engines_come_and_go_before_a_pool_where_decisions_are_made_last_and_first(
    pool, engines, session
):
    gateways = [await pool.gateway() for _ in range(2)]
    await until(lambda: any(each.brain.decides for each in gateways))
    gateways.sort(key=lambda each: each.brain.decides)
    extra = await engines()
    name = extra.url.removeprefix("http://")

    async def all_answered(names):
        asking = (ask(session, gateways[n % 2], each) for n, each in enumerate(names))
        answers = await asyncio.gather(*asking)
        assert {status for status, _ in answers} == {200}, answers
        return True

    for each in gateways:
        assert (await operate(session, each, "POST", json={"url": extra.url}))[0] == 201
        await until(lambda each=each: not each.monitor.problems)
        assert await all_answered("ab")
    assert await all_answered("cdefghij")
    assert (called := len(extra.calls))
    extra.answer = extra.when_released
    held = [asyncio.create_task(ask(session, each, f"k{n}")) for n, each in enumerate(gateways * 3)]
    await until(lambda: len(extra.calls) > called)
    for each in reversed(gateways):
        assert (await operate(session, each, "DELETE", f"/{name}"))[0] == 202
        extra.release(len(held))
        async with asyncio.timeout(LIMIT_S):
            while name in str(await operate(session, each, "GET")):
                await asyncio.sleep(0.02)
    answers = [await call for call in held]
    assert [status for status, _ in answers] == [200] * len(held), answers
    called = len(extra.calls)
    assert await all_answered("lmno")
    assert len(extra.calls) == called


async def test_a_balancer_reads_its_engines_again_and_lets_nobody_change_them(
    pool, engine, engines, session, tmp_path
):
    extra, file = await engines(), tmp_path / "kairos.toml"
    file.write_text(f'[[engine]]\nurl = "{engine.url}"\n')
    process = Process(
        tmp_path, "balance", "balance", "--port", "0", "--bus", pool.bus, "--pool", pool.name,
        "--config", file, fresh=True,
    )  # fmt: skip
    with process:
        await process.until_it_says("this process decides")
        both = "".join(f'[[engine]]\nurl = "{each.url}"\n' for each in (engine, extra))
        file.write_text(f'{both}[[key]]\nsha256 = "{"0" * 64}"\ntenant = "acme"\n')
        os.kill(process.pid, signal.SIGHUP)
        await process.until_it_says(f"instance {extra.url[7:]} serves tiny")
        assert "changed: engine, key" in process.said
        assert "needs a restart" not in process.said
        admin = re.findall(r"figures on (http://\S+)", process.said)[0] + "/admin/instances"
        async with session.get(admin) as response:
            assert len((await response.json())["instances"]) == 2
        async with session.post(admin, json={"url": "http://h:1"}) as response:
            assert response.status == 405
