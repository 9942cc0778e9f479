"""`kairos simulate --flow`: a flow over a table, on simulated engines, in virtual time."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

import msgspec

from kairos.core import (
    SECOND,
    EngineProfile,
    Ledger,
    Observer,
    Placement,
    Policy,
    SetupError,
    WorkEstimates,
    placement_named,
    policy_named,
)
from kairos.engines import load_profile
from kairos.settings import Settings
from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.plan import INSTANCES, PROFILE
from kairos.simulate.users import Feed
from kairos.simulate.workload.prompt import Prompt
from kairos.simulate.world import World
from kairos.workflows import (
    FlowFigures,
    FlowLimits,
    FlowObservation,
    Functions,
    Passes,
    Plan,
    RunFunction,
    load_table_flow,
)

DEFAULTS = Settings()


class SimulatedFlow(msgspec.Struct, frozen=True):
    """Result of a simulated flow.

    `figures` are the executor's; `prompt_tokens_computed` the engines'.
    """

    flow: str
    instances: int
    simulated_s: float
    figures: FlowFigures
    prompt_tokens_computed: int
    prompt_tokens_cached: int

    def lines(self) -> Iterator[str]:
        """Yield the result as text for a terminal."""
        figures, cached = self.figures, self.prompt_tokens_cached
        share = cached / max(1, cached + self.prompt_tokens_computed)
        yield (
            f"flow {self.flow} on {self.instances} instances: {self.simulated_s:,.1f} s of virtual "
            "time"
        )
        yield (
            f"rows: {figures.read:,} read, {figures.written:,} written, {figures.dropped:,} "
            f"filtered away, {figures.failed:,} failed"
        )
        yield (
            f"calls: {figures.calls:,} made, {figures.calls / max(self.simulated_s, 1e-9):,.1f} a "
            f"second; {figures.merged:,} merged with equal ones"
        )
        yield (
            f"tokens: {figures.prompt_tokens:,} of prompts, {share:.0%} of them found in prefix "
            f"caches; {figures.completion_tokens:,} of answers"
        )


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a pool.

    `client` is an alternative to `FlowClient`, for comparisons. `held` are prefixes of prompts that
    each engine has from the start, and keeps.
    """

    instances: int
    profile: EngineProfile
    policy: Callable[[WorkEstimates], Policy]
    placement: Callable[[Ledger], Placement]
    client: Callable[..., FlowClient] = FlowClient
    held: Sequence[Prompt] = ()


def simulate_flow(
    plan: Plan,
    table: Iterator[Mapping[str, object]],
    functions: Functions,
    pool: PoolOptions,
    observers: tuple[Observer, ...] = (),
    results: MutableMapping[str, object] | None = None,
) -> SimulatedFlow:
    """Simulate a flow to the end of its last row. Pure functions of the flow are called.

    `results` has earlier runs' results, by signature; this run's are added.
    """
    return observed_flow(plan, table, functions, pool, observers, results)[0]


def observed_flow(
    plan: Plan,
    table: Iterator[Mapping[str, object]],
    functions: Functions,
    pool: PoolOptions,
    observers: tuple[Observer, ...] = (),
    results: MutableMapping[str, object] | None = None,
) -> tuple[SimulatedFlow, FlowObservation]:
    """Simulate a flow, and return also what was observed of its calls."""
    instances = {f"engine-{number}": pool.profile for number in range(pool.instances)}
    limits = FlowLimits(
        capacity=pool.instances * pool.profile.max_num_seqs,
        kv_tokens=pool.instances * pool.profile.kv_tokens,
        instances=pool.instances,
    )
    clients: list[FlowClient] = []

    def client(clock: VirtualClock, feed: Feed) -> FlowClient:
        run = functions_runner(functions)
        made = pool.client(plan, limits, table, run, clock, feed, results=results)
        clients.append(made)
        return made

    world = World((), instances, pool.policy, pool.placement, observers=observers, clients=client)
    for engine in world.fleet.engines:
        for prompt in pool.held:
            engine.hold_prompt(prompt)
    (ran,) = clients
    ran.generated = world.fleet.progress
    world.run()
    stats = [engine.stats for engine in world.fleet.engines]
    cached = sum(each.cached_tokens for each in stats)
    simulated = SimulatedFlow(
        flow=plan.declaration.name,
        instances=pool.instances,
        simulated_s=world.clock.now() / SECOND,
        figures=ran.executor.figures,
        prompt_tokens_computed=sum(each.queried_tokens for each in stats) - cached,
        prompt_tokens_cached=cached,
    )
    return simulated, ran.executor.observation


def functions_runner(functions: Functions) -> Callable[[RunFunction], object]:
    """Return a runner that calls pure functions; others return null."""

    def run(command: RunFunction) -> object:
        return functions.call_pure(command.function, command.arguments)

    return run


def simulate_flow_file(
    flow: Path,
    inputs: Path | None,
    functions: Path | None,
    passes: Passes,
    pool: PoolOptions,
    observers: tuple[Observer, ...] = (),
) -> SimulatedFlow:
    """Simulate a flow file. Unreadable rows are left out. `observers` receive each fact.

    Raises:
        SetupError: The flow or the table is missing or invalid; the message says what is expected.
    """
    if inputs is None:
        raise SetupError("name the table of rows that the flow goes over: --inputs FILE")
    asked = load_table_flow(flow, functions, inputs, passes)
    return simulate_flow(asked.plan, asked.rows(), asked.functions, pool, observers)


def pool_options(
    instances: int | None = None,
    profile: str | None = None,
    policy: str | None = None,
    placement: str | None = None,
) -> PoolOptions:
    """Return the options of a pool, by name; None: the default of `kairos simulate`.

    Raises:
        SetupError: The profile, policy or placement does not exist.
    """
    return PoolOptions(
        instances=instances or INSTANCES,
        profile=load_profile(profile or PROFILE),
        policy=policy_named(policy or DEFAULTS.policy),
        placement=placement_named(placement or DEFAULTS.placement),
    )
