"""A planned pool in virtual time: what the planner says of it, checked by the model of vLLM.

Each workflow arrives as a Poisson process says, at the planned rate, and Kairos's own policy and
placement decide, of pairs which prefill instance and which decode instance a call gets, too. Caches
go over links of the planned rate.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import Link
from kairos.capacity.hardware_plan import HardwarePlan, HardwareQuestion
from kairos.capacity.pool import InstanceKind
from kairos.core import EngineProfile, Phase, SetupError, StepCost, placement_named, policy_named
from kairos.simulate import CacheLink, KvLinks, Workflow, World, draw_arrivals, draw_submissions

_US = 1e6
POLICY = PLACEMENT = "kairos"
SEED = 1
BLOCK = 16  # tokens: vLLM's default
STAYS, FEWEST, MOST = 50, 500, 20_000  # workflows: as many as come in 50 times what one takes


class SimulatedTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of workflows, from request to end."""

    workflows: int
    mean_s: float
    p50_s: float
    p95_s: float


class SimulatedPool(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of planned kinds."""

    counts: Mapping[str, int]  # by kind
    kinds: Sequence[InstanceKind]
    link: Link = Link()  # of pairs

    def instances(self, workflows: Sequence[Workflow]) -> dict[str, EngineProfile]:
        """Return the simulation's instances by id.

        Raises SetupError: One of them cannot be simulated.
        """
        longest = max(
            call.prompt_tokens + call.completion_tokens for each in workflows for call in each.calls
        )
        found: dict[str, EngineProfile] = {}
        for kind in self.kinds:
            profile = engine_profile(kind.rates, kind.name, longest + 1)
            found |= dict.fromkeys(self._ids(kind), profile)
        return found

    def phases(self) -> dict[str, Phase]:
        return {name: kind.phases.value for kind in self.kinds for name in self._ids(kind)}

    def links(self) -> KvLinks:
        """Return the links: each instance has its devices' links together."""
        link = self.link
        found = {
            name: CacheLink(
                gbit_s=link.gbit_s * kind.rates.devices,
                latency_us=link.latency_s * _US,
                overlapped=link.overlapped,
                bytes_per_token=kind.kv_bytes_per_token,
            )
            for kind in self.kinds
            for name in self._ids(kind)
        }
        return KvLinks(found, 0.0)

    def models(self) -> dict[str, str]:
        """Return the model of each instance; empty: all have the same."""
        found = {name: kind.model for kind in self.kinds for name in self._ids(kind)}
        return found if len(set(found.values())) > 1 else {}

    def _ids(self, kind: InstanceKind) -> list[str]:
        name = kind.name.replace(" ", "-")
        return [f"{name}-{n}" for n in range(self.counts.get(kind.name, 0))]


def engine_profile(rates: EngineRates, name: str, max_model_len: int) -> EngineProfile:
    """Return an engine of the model that has these rates.

    Stages of a pipeline become one engine with the room of all of them, whose steps are as many
    times as quick: the throughput is theirs, not the latency. So they are refused. Raises
    SetupError: the instance has several stages.
    """
    if rates.stages > 1:
        raise SetupError(f"{name} is a pipeline, which cannot be simulated: lower --max-devices")
    return EngineProfile(
        name=name,
        source=rates.rests_on,
        measured=rates.measured,
        kv_tokens=int(rates.kv_tokens) // BLOCK * BLOCK,
        block_size=BLOCK,
        max_num_seqs=rates.max_num_seqs,
        max_num_batched_tokens=rates.chunk_tokens,
        max_model_len=max_model_len,
        call_us=rates.call_s * _US,
        step=StepCost(
            fixed_us=rates.fixed_s * _US,
            weights_us=rates.weights_s * _US,
            # Exchanges between devices are no part of what weights hide; here they must be.
            prefill_token_us=(rates.prefill_token_s + rates.exchange_s) * _US,
            prefill_seq_us=rates.prefill_seq_s * _US,
            decode_seq_us=(rates.decode_seq_s + rates.exchange_s) * _US,
            kv_token_us=rates.kv_token_s * _US,
            attention_us=rates.attention_s * _US,
        ),
    )


def simulate_plan(
    asked: HardwareQuestion, plan: HardwarePlan, workflows: Sequence[Workflow]
) -> SimulatedTimes:
    """Simulate the chosen pool under its workflows for long enough to be in a steady state.

    Raises SetupError: the pool has instances that cannot be simulated.
    """
    chosen, per_s = plan.chosen, plan.chosen.workflows_per_s
    stays_s = STAYS * chosen.prediction.mean_s
    count = min(max(round(per_s * stays_s), FEWEST), MOST)
    pool = SimulatedPool(counts=chosen.pool.counts, kinds=chosen.kinds, link=asked.link)
    return simulate_pool(pool, workflows, per_s, count)


def simulate_pool(
    pool: SimulatedPool, workflows: Sequence[Workflow], per_s: float, count: int
) -> SimulatedTimes:
    """Simulate a number of workflows on the pool, repeating them if needed.

    Raises SetupError: One of the kinds cannot be simulated.
    """
    at_us = draw_arrivals("poisson", count, per_s, SEED)
    world = pool_world(pool, workflows, at_us, SEED)
    world.run()
    e2e = world.metrics.record()["e2e_s"]
    return SimulatedTimes(workflows=count, mean_s=e2e["mean"], p50_s=e2e["p50"], p95_s=e2e["p95"])


def pool_world(
    pool: SimulatedPool,
    workflows: Sequence[Workflow],
    at_us: Sequence[int],
    seed: int,
    policy: str = POLICY,
) -> World:
    """Return a world with a workflow at each of these instants; none has run yet.

    Where the pool has several models, each call asks for its `model`. Raises SetupError: as
    `simulate_pool`.
    """
    return World(
        draw_submissions(workflows, at_us, seed),
        pool.instances(workflows),
        policy_named(policy),
        placement_named(PLACEMENT),
        phases=pool.phases(),
        links=pool.links(),
        models=pool.models(),
    )
