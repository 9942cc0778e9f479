"""A flow over a table of rows, on simulated engines: from files to figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kairos.core.dispatcher.placements import placement_named
from kairos.core.errors import SetupError
from kairos.core.runtime import Observer
from kairos.core.scheduler.policies import policy_named
from kairos.simulate.engine.profiles import profile
from kairos.simulate.flow_simulation import PoolOptions, SimulatedFlow, simulate_flow
from kairos.workflows.compile.pipeline import Passes, compile_plan
from kairos.workflows.run.flow_file import check_columns, load_flow
from kairos.workflows.run.tables import open_table


def simulated(
    flow: Path,
    inputs: Path | None,
    functions: Path | None,
    passes: Passes,
    pool: PoolOptions,
    observers: tuple[Observer, ...] = (),
) -> SimulatedFlow:
    """Rows that cannot be read are left out. `observers` hear of each fact.

    Raises:
        SetupError: the flow or the table is missing or wrong; says what would be right.
    """
    if inputs is None:
        raise SetupError("name the table of rows that the flow goes over: --inputs FILE")
    loaded = load_flow(flow, functions)
    plan = compile_plan(loaded.declaration, passes)
    loaded.functions.check(plan)
    table = open_table(inputs)
    check_columns(plan, table)
    rows: Iterator[Mapping[str, object]] = (
        row.values for row in table.rows() if row.values is not None
    )
    return simulate_flow(plan, rows, loaded.functions, pool, observers)


def pool_options(*, instances: int, profile_name: str, policy: str, placement: str) -> PoolOptions:
    """Raises SetupError: there is no such profile, policy or placement."""
    return PoolOptions(
        instances=instances,
        profile=profile(profile_name),
        policy=policy_named(policy),
        placement=placement_named(placement),
    )


def shown(run: SimulatedFlow) -> Iterator[str]:
    """For a terminal."""
    figures, cached = run.figures, run.prompt_tokens_cached
    share = cached / max(1, cached + run.prompt_tokens_computed)
    yield f"flow {run.flow} on {run.instances} instances: {run.simulated_s:,.1f} s of virtual time"
    yield (
        f"rows: {figures.read:,} read, {figures.written:,} written, {figures.dropped:,} filtered "
        f"away, {figures.failed:,} failed"
    )
    yield (
        f"calls: {figures.calls:,} made, {figures.calls / max(run.simulated_s, 1e-9):,.1f} a "
        f"second; {figures.merged:,} merged with equal ones"
    )
    yield (
        f"tokens: {figures.prompt_tokens:,} of prompts, {share:.0%} of them found in prefix "
        f"caches; {figures.completion_tokens:,} of answers"
    )
