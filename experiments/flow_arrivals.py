"""Rows of a declared flow that arrive one after the other, on two simulated engines that are small:
eight sequences each, so that calls wait."""

from collections.abc import Sequence
from random import Random
from statistics import fmean

from msgspec.structs import replace

from experiments.flow_systems import engines
from experiments.flow_workloads import FlowWorkload
from kairos.core import PLACEMENTS, POLICIES, SECOND
from kairos.simulate import World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.users import Feed
from kairos.workflows import FlowLimits, Functions

SEQS = 8
_POOL = engines(POLICIES["kairos"], PLACEMENTS["kairos"])
_ENGINE = replace(_POOL.profile, max_num_seqs=SEQS)
# The executor holds nothing back: what goes first is the balancer's choice alone.
_LIMITS = FlowLimits(capacity=100_000, kv_tokens=10**9)


def complete_per_s(workload: FlowWorkload, rows: int) -> float:
    """Rows a second, when all are there at once."""
    took_s = _ends_s(workload, FlowClient, [0] * rows, 1)
    return rows / max(took_s)


def mean_latency_s(
    workload: FlowWorkload, client: type[FlowClient], rows: int, per_s: float, seed: int
) -> float:
    """Of a row, from its arrival to its end. The same arrivals for the same seed."""
    random, at, arrivals = Random(f"{workload.name} {seed}"), 0.0, []  # noqa: S311  (no secret)
    for _ in range(rows):
        at += random.expovariate(per_s)
        arrivals.append(int(at * SECOND))
    ends_s = _ends_s(workload, client, arrivals, seed)
    return fmean(end - at / SECOND for end, at in zip(ends_s, arrivals, strict=True))


def _ends_s(
    workload: FlowWorkload, client: type[FlowClient], arrivals: Sequence[int], seed: int
) -> list[float]:
    made: list[FlowClient] = []

    def clients(clock: VirtualClock, feed: Feed) -> FlowClient:
        plan, table = workload.flow.compile(), iter(workload.rows(len(arrivals), seed))
        run = functions_runner(Functions())
        made.append(
            client(plan, _LIMITS, table, run, clock, feed, arrives_at=lambda row: arrivals[row])
        )
        return made[0]

    instances = {f"engine-{number}": _ENGINE for number in range(_POOL.instances)}
    world = World((), instances, _POOL.policy, _POOL.placement, clients=clients)
    made[0].generated = world.fleet.progress
    world.run()
    return [made[0].ended_at_us[0, row] / SECOND for row in range(len(arrivals))]
