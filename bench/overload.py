"""More tasks than agents can do, for a while: what becomes of the tasks, and of the memory."""

import asyncio
import time
from collections import Counter

import msgspec

from bench.chain import WORK_S
from bench.load import Broken
from bench.scenarios import Measured
from bench.servers import Server
from kairos.agent import Application, read_result, submit
from kairos.cluster import KafkaBus, KafkaCluster, Tail
from kairos.core import Topic

CONCURRENCY = 20  # of each agent
CAPACITY = CONCURRENCY / WORK_S  # tasks per second
TIMES = 2  # the capacity comes in
TEXT = "a word of what the agents work on. " * 500  # 17 KiB
WARM_UP = 300  # tasks
WARM_UP_S = 30
GLANCE_S = 0.2
LINGER_S = 2.0  # for what might come twice
PATIENCE = 3  # times as long as the drain should take
MIB = 1 << 20

PUBLISHED = "overload: tasks published"
LOST = "overload: tasks lost"
TWICE = "overload: tasks done twice"
LAG = "overload: greatest lag"
LAG_MIB = "overload: greatest lag, by size"
MEMORY_BEFORE = "overload: agents' memory before"
MEMORY_HALF = "overload: agents' memory at half the lag"
MEMORY_GREATEST = "overload: agents' memory at the greatest lag"
RATE = "overload: tasks done while there is a queue"
DRAIN = "overload: time to drain"
MUST_BE_NONE = (LOST, TWICE)


class Moment(msgspec.Struct, frozen=True):
    """`lag`: tasks that are published and not through."""

    lag: int
    memory_bytes: int


class Overload:
    """Tasks for one application, whose agents run elsewhere; and how often each has ended."""

    def __init__(self, app: str, bus: KafkaBus, agents: Server) -> None:
        self._app = Application(app, entry="first")
        self._bus = bus
        self._agents = agents
        self._published: dict[str, None] = {}
        self._through: Counter[str] = Counter()

    @property
    def lag(self) -> int:
        return len(self._published) - len(self._through)

    def measured(self, moments: list[Moment]) -> Measured:
        """`moments`: the first of them from before anything waited."""
        greatest = max(moments, key=lambda moment: moment.lag)
        half = next(moment for moment in moments if moment.lag >= greatest.lag / 2)
        return {
            PUBLISHED: len(self._published),
            LOST: self.lag,
            TWICE: sum(times > 1 for times in self._through.values()),
            LAG: greatest.lag,
            LAG_MIB: greatest.lag * len(TEXT) / MIB,
            MEMORY_BEFORE: moments[0].memory_bytes / MIB,
            MEMORY_HALF: half.memory_bytes / MIB,
            MEMORY_GREATEST: greatest.memory_bytes / MIB,
        }

    async def publish(self, number: int, per_s: float) -> None:
        """This many tasks at a fixed rate, however long each publication takes."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.TaskGroup() as publications:
            for each in range(number):
                await asyncio.sleep(max(0.0, started + each / per_s - loop.time()))
                publications.create_task(self._publish())

    async def _publish(self) -> None:
        name = f"{self._app.name}-{len(self._published)}"
        self._published[name] = None
        now_us = time.time_ns() // 1000
        await submit(self._bus, self._app, {"text": TEXT}, now_us=now_us, msg_id=name)

    async def count(self, results: Tail) -> None:
        """What ends, until cancelled."""
        while True:
            for message in await results.batch():
                if message.key not in self._published:
                    continue
                if "error" in (value := read_result(message).value):
                    raise Broken(f"an agent failed: {value['error']}")
                self._through[message.key] += 1

    async def watch(self, moments: list[Moment]) -> None:
        """Until cancelled."""
        while True:
            moments.append(Moment(self.lag, self._agents.resident_bytes()))
            await asyncio.sleep(GLANCE_S)

    async def drain(self, limit_s: float) -> None:
        """Until nothing is left, or nothing more can be hoped for."""
        until = time.monotonic() + limit_s
        while self.lag and time.monotonic() < until:
            await asyncio.sleep(0.01)


async def overload(connection: KafkaCluster, app: str, agents: Server, seconds: float) -> Measured:
    """Publish, for so long, `TIMES` what the agents can do, then wait until they have done it.

    Raises:
        Broken: the agents do not work at all.
    """
    async with (
        KafkaBus(connection) as bus,
        Tail(connection, Topic.RESULTS) as results,
        asyncio.TaskGroup() as beside,
    ):
        load = Overload(app, bus, agents)
        counting = beside.create_task(load.count(results))
        await load.publish(WARM_UP, CAPACITY)
        await load.drain(WARM_UP_S)
        if load.lag:
            raise Broken(f"agents have {load.lag} of {WARM_UP} tasks left after {WARM_UP_S} s")
        moments: list[Moment] = []
        watching = beside.create_task(load.watch(moments))
        started = time.monotonic()
        number = int(seconds * TIMES * CAPACITY)
        await load.publish(number, TIMES * CAPACITY)
        published_at = time.monotonic()
        await load.drain(PATIENCE * seconds * (TIMES - 1) + WARM_UP_S)
        ended = time.monotonic()
        await asyncio.sleep(LINGER_S)
        counting.cancel()
        watching.cancel()
    return load.measured(moments) | {
        RATE: (number - load.lag) / (ended - started),
        DRAIN: ended - published_at,
    }
