"""A flow over a table of rows, on simulated engines: from files to figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kairos.core import Observer, SetupError, placement_named, policy_named
from kairos.simulate.engine.profiles import load_profile
from kairos.simulate.flow_simulation import PoolOptions, SimulatedFlow, simulate_flow
from kairos.workflows import Passes, check_columns, compile_plan, load_flow, open_table


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
    """Return the options of a pool.

    Raises:
        SetupError: The profile, policy or placement does not exist.
    """
    return PoolOptions(
        instances=instances,
        profile=load_profile(profile_name),
        policy=policy_named(policy),
        placement=placement_named(placement),
    )


def show_simulated_flow(run: SimulatedFlow) -> Iterator[str]:
    """Yield the result as text for a terminal."""
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
