"""Profile of a flow, learnt from some rows of a table, which run on real or simulated engines.

It is stored as a small file next to the flow.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from kairos.cli.flows.flow_measured import AskedOfRun, measured_batches, measured_factors
from kairos.cli.flows.flow_run import FlowTask, check_task, new_record, run_task
from kairos.cli.flows.spread.run import RayRun
from kairos.core import SECOND, InvalidFile, SetupError
from kairos.engines import load_profile as engine_profile
from kairos.host import atomic_write
from kairos.simulate import PoolOptions, observed_flow
from kairos.workflows import (
    PROFILE_FORMAT,
    ROWS_KEPT,
    BatchProfile,
    FlowObservation,
    FlowProfile,
    FlowRun,
    Functions,
    InputTable,
    LoadedFlow,
    Passes,
    Plan,
    RunForecast,
    RunRecord,
    RunStore,
    check_columns,
    compile_plan,
    forecast_flow,
    learn_profile,
    measured_latencies,
    processor_service,
    with_text_tokens,
)

_BYTES = 16 << 20  # of a profile's file

Row = dict[str, Any]


def profile_path(flow: Path) -> Path:
    """Return the default path of a flow's profile."""
    return flow.with_name(f"{flow.stem}.profile.json")


def sampled_rows(table: InputTable, count: int, seed: int) -> list[Row]:
    """Return `count` rows of a table, in order; any set is equally likely (reservoir sampling).

    Unreadable rows are skipped.

    Raises:
        SetupError: The table has no readable row.
    """
    dice = np.random.default_rng(seed)
    kept: list[tuple[int, Row]] = []
    for seen, row in enumerate(row for row in table.rows() if row.values is not None):
        assert row.values is not None
        if len(kept) < count:
            kept.append((seen, row.values))
        elif (place := int(dice.integers(seen + 1))) < count:
            kept[place] = (seen, row.values)
    if not kept:
        raise SetupError("the table has no row that could be read: there is nothing to learn from")
    return [values for _, values in sorted(kept, key=lambda each: each[0])]


def checked_plan(loaded: LoadedFlow, table: InputTable) -> Plan:
    """Return the plan of a flow over a table.

    Raises:
        SetupError: The flow, its functions and the table do not fit together.
    """
    plan = compile_plan(loaded.declaration, Passes())
    loaded.functions.check(plan)
    check_columns(plan, table)
    return plan


def simulated_profile(
    loaded: LoadedFlow, plan: Plan, rows: Sequence[Row], pool: PoolOptions
) -> FlowProfile:
    """Return what rows teach, with answers that are made up."""
    _, seen = observed_flow(plan, iter(rows), loaded.functions, pool)
    return _learnt(plan, rows, seen)


async def measured_profile(
    loaded: LoadedFlow, plan: Plan, rows: Sequence[Row], **pool: Any
) -> FlowProfile:
    """Measure a profile with real calls: no cached results are used. The run is not kept.

    `pool` has `engines` or `url`, and other fields of `RunRecord`.

    Raises:
        SetupError: No engine is given, or all rows failed.
    """
    runs: list[FlowRun | RayRun] = []
    asked = AskedOfRun()
    with TemporaryDirectory() as scratch:
        store = RunStore(Path(scratch))
        out = str(Path(scratch) / "out.jsonl")
        record = new_record(store, loaded.declaration, out=out, uses_cache=False, **pool)
        task = check_task(record, loaded.declaration, loaded.functions, list(rows))
        record = await run_task(task, store, lambda _: None, runs.append, timeline=asked)
    failed = record.figures.get("failed", 0)
    if failed == len(rows):
        raise SetupError(
            f"all {failed} rows failed, so nothing was learnt: kairos run on this table says why"
        )
    assert isinstance(runs[0], FlowRun), "it is of this process"
    found = _learnt(plan, rows, runs[0].observation)
    batches = await _batches(record, asked, loaded.functions)
    factors = await measured_factors(plan, record, asked)
    return msgspec.structs.replace(found, batches=batches, cost=factors)


async def _batches(
    record: RunRecord, asked: AskedOfRun, functions: Functions
) -> dict[str, BatchProfile]:
    """Measure batched operators with the items of the rows."""
    if record.retrieval is None:
        return await measured_batches(asked, None, functions)
    async with processor_service(record.retrieval, os.environ) as service:
        return await measured_batches(asked, service.of(), functions)


def known_profile(learnt: Path | None, flow: Path) -> FlowProfile | None:
    """Return a flow's profile, or None without a file.

    Without `learnt`, the profile in the flow's folder is used.

    Raises:
        InvalidFile: The file is not a profile.
    """
    path = learnt or profile_path(flow)
    return None if learnt is None and not path.exists() else read_profile(path)


def known_batches(learnt: Path | None, flow: Path) -> dict[str, int]:
    """Return the efficient batches of a flow's profile, empty without a profile.

    Raises:
        InvalidFile: The file is not a profile.
    """
    known = known_profile(learnt, flow)
    return {} if known is None else known.efficient_batches


def read_profile(path: Path) -> FlowProfile:
    """Read a profile.

    Raises:
        InvalidFile: The file is missing, or not a profile of this version.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES + 1)
        if len(raw) > _BYTES:
            raise InvalidFile(path, f"it exceeds {_BYTES >> 20} MiB, so it is not a profile")
        found = msgspec.json.decode(raw, type=FlowProfile)
    except OSError as error:
        raise InvalidFile(path, f"it cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(path, f"it is not a flow's profile: {error}") from None
    if found.format != PROFILE_FORMAT:
        raise InvalidFile(
            path,
            f"it is of format {found.format}, not {PROFILE_FORMAT}: recreate it (kairos profile)",
        )
    return found


def expecting(task: FlowTask, learnt: Path | None, flow: Path, engine: str) -> FlowTask:
    """Return the task with a forecast for its engines in the record.

    Its passes weigh savings by the engines' times.

    Raises:
        SetupError: The engines' profile is unknown, or the flow has no profile.
    """
    plan = task.plan()
    known = read_profile(learnt or profile_path(flow))
    readable = (row.values for row in task.table.rows() if row.values is not None)
    found = forecast_flow(plan, known, readable, engine_profile(engine), len(task.record.engines))
    expected = RunForecast(
        time_s=found.time_s.mean,
        low_s=found.time_s.low,
        high_s=found.time_s.high,
        calls=found.calls,
        prompt_tokens=found.prompt_tokens.mean,
        completion_tokens=found.completion_tokens.mean,
        cached_share=found.cached_share,
    )
    record = msgspec.structs.replace(task.record, forecast=expected)
    costs = measured_latencies(engine_profile(engine), known.answers, known.times_us)
    return msgspec.structs.replace(task, record=record, latencies=costs)


def write_profile(path: Path, profile: FlowProfile) -> None:
    """Write a profile.

    Raises:
        SetupError: The file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")


def shown(profile: FlowProfile) -> list[str]:
    """Return lines for a terminal."""
    lines = [f"flow {profile.flow}: learnt from {profile.rows} rows"]
    for name, each in profile.operators.items():
        said = [f"  {name}: for {each.rows.mean:.0%} of rows"]
        if each.times.mean > 1:
            said.append(f"{each.times.mean:.1f} times each")
        for what, tokens in (("prompts", each.prompt_tokens), ("answers", each.completion_tokens)):
            if tokens is not None:
                said.append(
                    f"{what} of {tokens.mean:,.0f} tokens ({tokens.low:,.0f} to {tokens.high:,.0f})"
                )
        if each.time_us is not None:
            low, high = each.time_us.low / SECOND, each.time_us.high / SECOND
            said.append(f"{each.time_us.mean / SECOND:.3g} s a call ({low:.3g} to {high:.3g})")
        lines.append(", ".join(said))
    for key, batch in profile.batches.items():
        alone_us, us = batch.latency_us.get(1), batch.latency_us[batch.efficient]
        said = [f"  {key.removesuffix(':')}: {batch.efficient} at a time, {us / SECOND:.3g} s"]
        if alone_us is not None and batch.efficient > 1:
            said.append(f"one alone {alone_us / SECOND:.3g} s")
        lines.append("; ".join(said))
    measured = [
        f"{name} {factor:.2f}"
        for name, factor in msgspec.structs.asdict(profile.cost).items()
        if factor is not None
    ]
    if measured:
        lines.append(f"  factors of a placement's cost: {', '.join(measured)}")
    return lines


def _learnt(plan: Plan, rows: Sequence[Row], seen: FlowObservation) -> FlowProfile:
    operators = seen.operators.items()
    found = learn_profile(
        plan,
        min(len(rows), ROWS_KEPT),
        {name: each.lengths for name, each in operators},
        {name: list(each.times.values()) for name, each in operators},
        {name: each.took_us for name, each in operators},
    )
    found = msgspec.structs.replace(found, rows=len(rows))
    return with_text_tokens(found, plan, rows)
