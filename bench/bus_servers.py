"""What `bench.bus` measures, as processes: a broker, engines, two `kairos serve`, and agents."""

import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench import chain, overload
from bench.servers import NotStarted, Server, free_port, listens, server
from bench.systems import MANY, kairos_command
from bench.upstream import HOST, MODEL
from kairos.agents.bus_llm import reply_topic
from kairos.cluster import KafkaCluster, ensure_topics
from kairos.cluster.kafka.cluster import parse_bus
from kairos.core import Topic, inbox_topic

SCRIPT = Path(__file__).parents[1] / "scripts" / "kafka.sh"
GIVEN = "KAIROS_BENCH_BUS"
# As Kafka's own start script has it. In the 256 MiB of ours, of which half is the log cleaner's
# buffer, every other second begins with a pause of 80 ms.
HEAP = "-Xms1g -Xmx1g"
ANSWER_S = 10


class Names:
    """What this run alone has on the bus."""

    def __init__(self) -> None:
        run = f"bench-{secrets.token_hex(4)}"
        self.pool = self.replies = self.app = run
        self.chain = [inbox_topic(run, agent) for agent in chain.app.agents]
        self.relay = [inbox_topic(run, agent) for agent in ("relay", "sink")]
        self.topics = [*self.chain, *self.relay, reply_topic(run)]


@asynccontextmanager
async def broker(core: int | None) -> AsyncIterator[KafkaCluster]:
    """The Kafka that the environment names; else one on this core, which ends with the block, and
    what it holds with it.

    Raises:
        NotStarted: there is none; the message says what to do.
    """
    if given := os.environ.get(GIVEN):
        if (connection := parse_bus(given)) is None:
            raise NotStarted(f"{GIVEN}={given} is no Kafka: write kafka://HOST:PORT")
        yield connection
        return
    port = free_port()
    options = ["--no-docker", "--port", str(port), "--controller-port", str(free_port())]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as data:
        command = ["env", f"KAFKA_HEAP_OPTS={HEAP}", "bash", str(SCRIPT), "--data", data, *options]
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(server(command, port, core, listens))
            except NotStarted as error:
                raise NotStarted(f"{error}Or name one: {GIVEN}=kafka://HOST:PORT") from None
            yield KafkaCluster(servers=f"{HOST}:{port}")


@asynccontextmanager
async def topics(connection: KafkaCluster, names: Names) -> AsyncIterator[None]:
    """Those that are the run's own go at the end.

    Raises:
        SetupError: the cluster cannot be used.
    """
    await ensure_topics(connection, [*names.topics, Topic.RESULTS, Topic.DEAD_LETTERS])
    try:
        yield
    finally:
        client = AdminClient({"bootstrap.servers": connection.servers, "log_level": 0})
        for gone in client.delete_topics(names.topics, operation_timeout=ANSWER_S).values():
            with suppress(KafkaException):
                gone.result(ANSWER_S)


@asynccontextmanager
async def engines(core: int | None) -> AsyncIterator[list[int]]:
    """Where two listen."""
    ports = [free_port(), free_port()]
    command = [sys.executable, "-m", "bench.upstream", *map(str, ports)]
    async with server(command, ports[0], core):
        yield ports


@asynccontextmanager
async def serving(
    connection: KafkaCluster, pool: str, ports: Sequence[int], core: int | None
) -> AsyncIterator[Mapping[str, Server]]:
    """Two `kairos serve` before the same engines: `memory` without a bus, `http` on Kafka."""
    buses = {"memory": ["memory"], "http": [f"kafka://{connection.servers}", "--pool", pool]}
    started = {}
    async with AsyncExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryDirectory())
        for name, bus in buses.items():
            port = free_port()
            command = kairos_command(port, list(ports), MANY, f"{log}/{name}")
            command += ["--bus", *bus]
            started[name] = await stack.enter_async_context(server(command, port, core))
        yield started


@asynccontextmanager
async def agents(
    connection: KafkaCluster, app: str, engine: int, core: int | None
) -> AsyncIterator[Server]:
    """Those of `chain`. They make no LLM calls, but want to be told whom they would ask."""
    kairos = f"{Path(sys.executable).parent}/kairos"
    command = [
        *("env", f"{chain.NAME}={app}"),
        *(kairos, "agents", "run", "bench.chain", "--bus", f"kafka://{connection.servers}"),
        *("--url", f"http://{HOST}:{engine}", "--model", MODEL),
        *("--concurrency", str(overload.CONCURRENCY)),
    ]
    async with server(command, 0, core, _is_not_asked) as started:
        yield started


async def _is_not_asked(_port: int) -> bool:
    return True  # they serve nothing: that they work is seen by what they do
