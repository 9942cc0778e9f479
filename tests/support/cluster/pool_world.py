"""A world in which all of a pool runs but Kafka, engines and time: those are stood in for, and a
test says what reaches the log, what is acknowledged, who decides, and how far the clock goes.

Each topic is one list. What a process sends goes first into its outbox, from which it reaches the
log in order, as far as the test wants, and is acknowledged later, in order. A process that crashes
loses the rest. Time is the loop's: it stands still until a test lets it pass.
"""

import asyncio
import re
from collections import defaultdict, deque
from contextlib import ExitStack
from unittest import mock

import msgspec

from kairos.cluster import CALL, TAKEOVER_HEADER, TOLD, TYPE_HEADER, ReceivedMessage, Told
from kairos.cluster.bus.envelope import message_bytes
from kairos.cluster.kafka.cluster import MESSAGE_BYTES
from kairos.cluster.kafka.items import Assigned, CaughtUp, Revoked
from kairos.cluster.pool import member as member_module
from kairos.cluster.pool import performer as performer_module
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.cells import Cells
from kairos.cluster.pool.member import PoolMember
from kairos.cluster.pool.messages import CAUSE, EPOCH, PERFORMER, REDO
from kairos.cluster.pool.performer import Performer
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Balancer,
    InstanceJoined,
    KairosError,
    MessageTooLarge,
    Record,
    Topic,
    Unavailable,
)
from kairos.proxy import Asked, Call, EngineClient, EngineRefused, HttpEngine, Upstream
from kairos.request import Body, ClientResponse, PromptTokens, Tokenizers
from tests.support.simulate import build

POOL = "pool"
REPLY_TO = f"{Topic.REPLIES}caller"
BODY = b'{"messages":[]}'


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time passes when it is told to."""

    def __init__(self):
        super().__init__()
        self.seconds = 1_000_000.0

    def time(self):
        return self.seconds


class Clock:
    def __init__(self, loop):
        self._loop = loop

    def now(self):
        return int(self._loop.seconds * SECOND)


class Outbox:
    """A producer. Bounded by what the world says it takes."""

    def __init__(self, process):
        self._world, self._process = process.world, process
        self.unsent = defaultdict(deque)  # by topic
        self.unacknowledged = defaultdict(deque)
        self.is_full = False
        self.refused = set()  # topics whose messages the cluster does not want

    async def partitions(self, topic):
        return 1

    def send(self, topic, key, value, headers=None):
        headers = dict(headers or {})
        size = message_bytes(key, value, headers)
        if size > MESSAGE_BYTES:
            raise MessageTooLarge(topic, size, MESSAGE_BYTES)
        if self.is_full:
            raise Unavailable("the bus takes nothing")
        future = self._world.loop.create_future()
        if not self._process.is_dead:
            self.unsent[topic].append((future, key, value, headers))
        return future

    def deliver(self, topic, count=None):
        """The oldest of what was sent reach the log."""
        unsent = self.unsent[topic]
        for _ in range(len(unsent) if count is None else min(count, len(unsent))):
            future, key, value, headers = unsent.popleft()
            if topic in self.refused:
                if not future.done():
                    future.set_exception(Unavailable(f"{topic} is not wanted"))
                continue
            offset = self._world.append(topic, key, value, headers)
            self.unacknowledged[topic].append((future, offset))

    def acknowledge(self, topic, count=None):
        waiting = self.unacknowledged[topic]
        for _ in range(len(waiting) if count is None else min(count, len(waiting))):
            future, offset = waiting.popleft()
            if not future.done():
                future.set_result(offset)


class Reading:
    """A subscription. In the group only one process has the partition, as the world says."""

    def __init__(self, process, topics, group=None, *, start="beginning", **_):
        self._process, self._world = process, process.world
        self.topic, self._group, self._start = topics[0], group, start
        self._items = deque()
        self._ready = asyncio.Event()

    async def __aenter__(self):
        if self._group is not None:
            self._process.group = self
            return self
        log = self._world.logs[self.topic]
        if isinstance(self._start, int):
            since = next((m.offset for m in log if m.at >= self._start), len(log))
        else:
            since = 0 if self._start == "beginning" else len(log)
        self.put(*log[since:], CaughtUp(self.topic, 0))
        self._world.readings.append(self)
        return self

    async def __aexit__(self, *_):
        if self._group is not None:
            self._process.group = None
            if self._world.holder is self._process:
                self._world.holder = None
            if self._process in self._world.zombies:
                self._world.zombies.remove(self._process)
        else:
            self._world.readings.remove(self)

    def put(self, *items):
        if self._process.is_deaf and self._group is None:
            self._process.unheard.append((self, items))
            return
        self._items.extend(items)
        self._ready.set()

    async def batch(self):
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        items = list(self._items)
        self._items.clear()
        return items

    async def commit(self, offsets):
        if self._world.holder is not self._process:
            raise Unavailable("the partition was revoked")
        self._world.committed = offsets[Topic.REQUESTS, 0]


class Answer:
    """An engine's: the parts that are sent of it, and how it breaks off, if it does."""

    def __init__(
        self,
        status=200,
        body=b'{"answer":true}',
        kind="application/json",
        *,
        parts=None,
        broke=None,
    ):
        self.status, self.parts, self.broke = status, [body] if parts is None else parts, broke
        self.headers = [(b"content-type", kind.encode())]


class Engines(EngineClient):
    """Where calls of one process go; they run until the test answers them."""

    def __init__(self, process):
        super().__init__(Upstream(name, f"http://{name}") for name in process.world.fleet)
        self._process = process

    def send(self, answer, upstream):
        name = re.search(rb"X-Request-Id: (.*)\r", answer.head)[1].decode()
        running = Running(self._process, name, upstream.id, answer)
        self._process.world.started(running)
        answer.source = running


class Running:
    """A call on an engine."""

    def __init__(self, process, name, instance_id, sent):
        self.process, self.name, self.instance_id, self._sent = process, name, instance_id, sent

        self.is_answered = False

    def end(self, how="finished"):
        if how == "gone":
            self.fail(EngineRefused("gone"))
        else:
            self.answer(Answer(200 if how == "finished" else 500))

    def answer(self, answer):
        self.is_answered = True
        self.process.world.loop.call_soon(self._answer, answer)

    def fail(self, error):
        self.is_answered = True
        self.process.world.loop.call_soon(self._fail, error)

    def _answer(self, answer):
        self.abort()
        sent = self._sent
        sent.status, sent.headers = answer.status, answer.headers
        parts = iter(answer.parts)
        if sent.taker is not None:
            sent.taker.begun(sent)
        while sent.taker is not None and (part := next(parts, None)):
            sent.taker.came(part)
        if answer.broke is None:
            sent.end()
        else:
            sent.fail(answer.broke)

    def _fail(self, error):
        self.abort()
        self._sent.fail(error)

    def abort(self):
        """It runs no more."""
        if self in self.process.world.running:
            self.process.world.running.remove(self)

    def progressed(self):
        pass

    pause = resume = progressed


class Client:
    """One call through a gateway."""

    wants_answer = False

    def __init__(self, process, request):
        self.process, self.request = process, request
        self.status = None
        self.answering = None
        self.has_left = self.has_ended = False
        process.world.loop.call_soon(self._begin)

    def leave(self):
        self.process.world.loop.call_soon(self._leave)

    def _leave(self):
        self.has_left = True
        if self.answering is not None:
            self.answering.client_left()

    def start(self, status, headers):
        assert self.status is None, "two answers to one client"
        self.status = status

    def write(self, data, *, more):
        return True

    def cut_off(self):
        pass

    def _begin(self):
        process = self.process
        self._response = ClientResponse(self.request.id, self)
        call = Call(
            self.request,
            Asked("POST", "/v1/chat/completions", b"", {}),
            Body(BODY),
            self._response,
            process.performer,
            process.engine,
            self,
            lambda error: None,
            tries_again=True,
        )
        try:
            call.begin()
        except KairosError as error:
            self.ended(error)

    def counted(self, prompt_tokens):
        pass

    def answered(self, answer, *, streamed):
        pass

    def ended(self, error):
        assert not self.has_ended, "two ends of one call"
        self.has_ended = True
        if error is not None:
            self.error = error
            self._response.fail(error)


class Process:
    """What a gateway on a bus is made of."""

    def __init__(self, world, number, pools=(POOL,)):
        self.world, self.number = world, number
        self.is_dead = False
        self.is_cut_off = False  # nothing that it sends arrives
        self.is_deaf = False  # it hears what is told to the balancer, and nothing else
        self.unheard = []
        self.group = None
        self.clients = []
        self.outbox = Outbox(self)
        self.engine = HttpEngine(Engines(self))
        self.cells = Cells(pools, world.clock.now)
        self.performer = Performer(
            self,
            self.cells,
            self.outbox,
            self.engine.calls,
            world.clock,
            max_wait_s=world.gives_up_s,
        )
        self.performer.id = f"p{number}"
        self.calls = BusCalls(
            self.performer,
            self.engine,
            self.outbox,
            PromptTokens(Tokenizers({})),
            on_trouble=lambda error: None,
            on_error=lambda error: None,
            max_held_bytes=world.max_held_bytes,
        )
        self.seen = []  # records that this process decided
        self.member = PoolMember(
            self,
            POOL,
            self.outbox,
            self.performer,
            self.calls,
            world.clock,
            world.new_balancer,
            (self.seen.append,),
        )
        for joined in world.fleet.values():
            self.member.feed(InstanceJoined(joined))

    def __repr__(self):
        return self.performer.id

    async def begin(self, *, decides=True):
        await self.performer.__aenter__()
        self.performing = asyncio.create_task(self.performer.run())
        self.deciding = asyncio.create_task(self.member.run() if decides else asyncio.sleep(0))

    @property
    def active(self):
        return self.member.active

    @property
    def is_member(self):
        return not self.is_dead and self.group is not None

    @property
    def decides(self):
        return self.member.active is not None and self.member._backlog is None

    def hear_again(self):
        self.is_deaf = False
        unheard, self.unheard = self.unheard, []
        for reading, items in unheard:
            reading.put(*items)

    async def tasks_end(self):
        tasks = [self.performing, self.deciding, *self.calls._tasks]
        for client in self.clients:
            client.leave()
        while not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()  # once is not enough for a call whose client has just left
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)


class World:
    """A context manager."""

    def __init__(
        self,
        *,
        seqs=(2, 1),
        policy="fcfs",
        max_waiting=6,
        max_wait_s=30,
        gives_up_s=100_000,
        max_held_bytes=1 << 30,
    ):
        self.fleet = {f"e{n}": build.instance(f"e{n}", seqs=s) for n, s in enumerate(seqs)}
        self.gives_up_s, self.max_held_bytes = gives_up_s, max_held_bytes
        self._balancer = {"max_waiting": max_waiting, "max_wait_us": max_wait_s * SECOND}
        self._policy = policy
        self.logs = defaultdict(list)
        self.readings = []
        self.processes = []
        self.holder = None  # whose the partition is
        self.zombies = []  # whose it was, and who do not know yet
        self.committed = (-1001, "")
        self.running = []
        self.starts = []  # (process, name, instance id)
        self.started_twice = []
        self.problems = []  # that nobody caught
        self._stack = ExitStack()

    def __enter__(self):
        self.loop = VirtualLoop()
        self.clock = Clock(self.loop)
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        asyncio.set_event_loop(None)

        async def follow(_):
            await asyncio.Event().wait()
            yield

        async def read_at(_, topic, offset):
            await asyncio.sleep(0)
            log = self.logs[topic]
            return log[offset] if offset < len(log) else None

        self._stack.enter_context(mock.patch.object(performer_module, "read_at", read_at))
        for module in (member_module, performer_module):
            self._stack.enter_context(mock.patch.object(module, "Subscription", Reading))
        self._stack.enter_context(mock.patch.object(member_module, "follow", follow))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if not process.is_dead:
                self.kill(process)
        self._stack.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def new_balancer(self):
        return Balancer(POLICIES[self._policy], PLACEMENTS["least-kv"], **self._balancer)

    # What happens at once

    def append(self, topic, key, value, headers):
        log = self.logs[topic]
        message = ReceivedMessage(topic, 0, len(log), self.clock.now(), key, value, headers)
        log.append(message)
        for reading in self.readings:
            if reading.topic == topic:
                reading.put(message)
        if topic == Topic.REQUESTS:
            for process in (self.holder, *self.zombies):
                if process is not None and process.group is not None:
                    process.group.put(message)
        return message.offset

    def started(self, running):
        twice = [r for r in self.running if r.name == running.name]
        self.started_twice += [(running.name, running.process, r.process) for r in twice]
        self.running.append(running)
        self.starts.append((running.process, running.name, running.instance_id))

    # What a test does

    def settle(self, turns=60):
        """All that can be done without Kafka, engines and time is done; or a part of it."""

        async def spin():
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(spin())

    def process(self, pools=(POOL,)):
        """A gateway. Over several pools it decides for none."""
        process = Process(self, len(self.processes), pools)
        self.processes.append(process)
        self.loop.run_until_complete(process.begin(decides=len(pools) == 1))
        self.settle()
        return process

    @property
    def live(self):
        return [process for process in self.processes if not process.is_dead]

    def flow(self, rounds=12):
        """Whatever was sent arrives, is acknowledged and is read, until nothing more happens."""
        for _ in range(rounds):
            self.settle()
            sent = False
            for process in self.live:
                if process.is_cut_off:
                    continue
                for topic in sorted({*process.outbox.unsent, *process.outbox.unacknowledged}):
                    sent |= bool(process.outbox.unsent[topic])
                    sent |= bool(process.outbox.unacknowledged[topic])
                    process.outbox.deliver(topic)
                    process.outbox.acknowledge(topic)
            if not sent:
                break
        self.settle()

    def sleep(self, seconds, step=0.5):
        """Time passes, and everything flows."""
        until = self.loop.seconds + seconds
        while self.loop.seconds < until:
            self.loop.seconds = min(until, self.loop.seconds + step)
            self.settle()
            self.flow()

    def assign(self, process, *, orderly=True):
        """The partition becomes this process's. Who had it is told before, or (a zombie) later."""
        before = self.holder
        if before is process:
            return
        if before is not None and before.is_member:
            if orderly:
                before.group.put(Revoked(Topic.REQUESTS, 0))
                self.settle()
            else:
                self.zombies.append(before)
        if process in self.zombies:
            self.tell_revoked(process)
        self.holder = process if process.is_member else None
        if self.holder is None:
            return  # it found out that another has announced itself, and begins anew
        offset, metadata = self.committed
        log = self.logs[Topic.REQUESTS]
        process.group.put(
            Assigned(Topic.REQUESTS, 0, offset, metadata),
            *log[max(0, offset) :],
            CaughtUp(Topic.REQUESTS, 0),
        )
        self.settle()

    def tell_revoked(self, process):
        if process not in self.zombies:
            return  # it has found out
        self.zombies.remove(process)
        if process.group is not None:
            process.group.put(Revoked(Topic.REQUESTS, 0))
        self.settle()

    def kill(self, process):
        """Nothing of what it does from here on reaches anybody."""
        process.is_dead = True
        if self.holder is process:
            self.holder = None
        if process in self.zombies:
            self.zombies.remove(process)
        process.outbox.unsent.clear()
        self.loop.run_until_complete(process.tasks_end())

    def leave(self, process):
        """It decides no more, and goes on performing calls."""
        process.deciding.cancel()
        self.flow()

    def call(self, process, name, **fields):
        now = self.clock.now()
        request = build.request(name, at=now, **fields)
        client = Client(process, request)
        process.clients.append(client)
        return client

    def ask(self, name, reply_to=REPLY_TO, value=BODY, **headers):
        said = {TYPE_HEADER: CALL, "kairos-request-id": name, "kairos-reply-to": reply_to}
        return self.append(Topic.REQUESTS, POOL, value, said | headers)

    def tell(self, performer, event):
        value = msgspec.json.encode(Told(performer, event))
        return self.append(Topic.REQUESTS, POOL, value, {TYPE_HEADER: TOLD})

    def run(self, name):
        [running] = [each for each in self.running if each.name == name]
        return running

    # What a test sees

    def replies(self, name, topic=REPLY_TO):
        said = [m for m in self.logs[topic] if m.headers["kairos-request-id"] == name]
        return [msgspec.json.decode(m.value)["status"] for m in said]

    def records(self):
        """Those that count: (record, headers, offset)."""
        newest, counted = -1, []
        for message in self.logs[Topic.EVENTS]:
            if TAKEOVER_HEADER in message.headers:
                newest = message.offset
            elif int(message.headers[EPOCH]) == newest:  # the epoch of the latest announcement
                record = msgspec.json.decode(message.value, type=Record)
                counted.append((record, message.headers, message.offset))
        return counted


def life(records):
    """What the records say of each call, in order: by its id, a list of what happened.

    Raises AssertionError: it does not begin, go on and end as a call does.
    """
    lives, states, performers = defaultdict(list), {}, {}
    for record, headers, _ in records:
        event = record.event
        kind = type(event).__name__
        if kind == "Arrived":
            name, cause = event.request.id, (headers[CAUSE], "waits")
            if name in states:  # only who performs it may have changed
                assert states[name] == cause, name
            else:
                lives[name].append(kind)
                states[name] = cause
            performers[name] = headers[PERFORMER]
        elif kind == "Bounced":
            name = event.request_id
            if name in states:
                assert states[name][1] == "runs", name
                lives[name].append(kind)
                states[name] = (states[name][0], "waits")
        elif kind in ("Finished", "Failed", "Cancelled"):
            name = event.request_id
            if name in states:
                lives[name].append(kind + (" again" if REDO in headers else ""))
                del states[name]
        for command in record.commands:
            name = command.request_id
            kind = type(command).__name__
            is_cancelled = kind == "Refuse" and command.reason == "cancelled"
            assert is_cancelled or states[name][1] == "waits", (name, kind)
            lives[name].append(kind)
            if kind == "Dispatch":
                states[name] = (states[name][0], "runs")
            else:
                del states[name]
    return lives, states, performers
