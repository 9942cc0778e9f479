"""`python -m bench.ranks`: how soon a fresh balancer has the ranks of all agents, over Kafka.

From its first connection until it can decide by what was learnt: profiles, models and ranks, made
up by a seed. Adds its figures to bench/results.json; takes half a minute. Kafka comes from
scripts/kafka.sh, or is the one that KAIROS_BENCH_BUS=kafka://HOST:PORT names.
"""

import secrets
import sys
import time
from contextlib import aclosing
from random import Random

import uvloop
from rich.console import Console

from bench import bus_servers, report, rows
from bench.report import Figure
from bench.servers import NotStarted
from bench.systems import cores
from kairos.cluster import KafkaCluster, Producer, ensure_topics
from kairos.cluster.kafka.profiles_topic import follow, publish
from kairos.core import (
    POLICIES,
    QUANTILES,
    SECOND,
    AgentProfile,
    AgentRank,
    Balancer,
    Distribution,
    KairosError,
    ProfilesLearnt,
    Topic,
)
from kairos.core.dispatcher.placements import LeastKv

AGENTS = (1_000, 5_000)
ROUNDS = 5
READY = "a fresh balancer has the ranks of {:,} agents, over Kafka"
TARGET_MS = 1_000


def learnt(app: str, agents: int) -> ProfilesLearnt:
    random = Random(agents)

    def distribution() -> Distribution:
        values = sorted(random.lognormvariate(0, 1) * SECOND for _ in range(QUANTILES))
        return Distribution(sum(values) / QUANTILES, tuple(values))

    names = [f"agent-{number}" for number in range(agents)]
    profiles = (
        AgentProfile(
            tenant="default",
            app=app,
            agent=name,
            samples=1_024,
            converged=True,
            call_us=distribution(),
            completion_tokens=distribution(),
            remaining_us=distribution(),
            remaining_stages=random.uniform(1, 9),
        )
        for name in names
    )
    ranks = (AgentRank("default", app, name, random.random()) for name in names)
    return ProfilesLearnt(tuple(profiles), ranks=tuple(ranks))


async def ready_ms(connection: KafkaCluster, agents: int) -> float:
    balancer = Balancer(POLICIES["wasserstein-mds"], LeastKv)
    began = time.perf_counter()
    async with aclosing(follow(connection)) as published:
        known = await anext(published)
    balancer.handle(known, 0)
    took = time.perf_counter() - began
    assert len(known.ranks) >= agents
    return took * 1000


async def measure() -> list[Figure]:
    figures = []
    system_core, _ = cores()
    async with bus_servers.broker(system_core) as connection, Producer(connection) as producer:
        await ensure_topics(connection, [Topic.PROFILES])
        for agents in AGENTS:
            made = learnt(f"bench-{secrets.token_hex(4)}", agents)
            await publish(producer, made)
            taken = report.spread([await ready_ms(connection, agents) for _ in range(ROUNDS)])
            await publish(producer, ProfilesLearnt(forgotten=tuple(p.key for p in made.profiles)))
            figures.append(
                Figure(
                    name=READY.format(agents),
                    value=taken.median,
                    unit="ms",
                    target=TARGET_MS,
                    detail={"kafka": taken},
                )
            )
    return figures


def main() -> None:
    console = Console()
    try:
        found = uvloop.run(measure())
    except (NotStarted, KairosError) as error:
        sys.exit(f"bench: {error}")
    rows.keep(found, "ranks")
    report.show(found, console, {"kafka": "over Kafka"})


if __name__ == "__main__":
    main()
