"""Pool of a run with devices of its own: engines that switch models, behind its own Kairos."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import msgspec

from kairos.core import SetupError
from kairos.engines import load_profile
from kairos.workflows.compile.device_work import DevicePlan, LoadTime, OperatorWork
from kairos.workflows.compile.flow_profile import UNKNOWN_FACTORS, FlowProfile, profiles_by_operator
from kairos.workflows.compile.flow_work import work_of_flow
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.prediction import FlowPrediction, predict_flow
from kairos.workflows.execute.limits import OPEN_ROWS
from kairos.workflows.execute.model_turns import DeviceTurn
from kairos.workflows.run.engine_host import HOSTED_ENGINES, EngineHost, HostedEngine, HostFile
from kairos.workflows.run.flow_run import Note
from kairos.workflows.run.pool import OpenEngines, RunPool
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.run_store import RunRecord

_SAMPLE = 1_000  # rows of which it is reckoned what a batch of rows takes
Rule = Callable[[Sequence[OperatorWork], Mapping[str, LoadTime], int], DevicePlan]


@asynccontextmanager
async def hosted_pool(
    record: RunRecord,
    host: HostFile,
    plan: Plan,
    table: InputTable,
    on_note: Note,
    open_engines: OpenEngines,
    log_dir: str | None = None,
    *,
    engines: Mapping[str, HostedEngine] = HOSTED_ENGINES,
    rule: Rule = place_operators,
) -> AsyncIterator[RunPool]:
    """Yield the pool. `rule` places operators on devices; others are compared with `place`.

    Raises:
        SetupError: A model of the flow is missing in the host's file.
    """
    works, placed = host_plan(plan, table, host, rule, record.learnt)
    async with open_engines(record, log_dir, None) as pool:
        assert pool.fleet is not None, "it is of a Kairos of its own"
        turns = device_turns(placed)
        async with EngineHost(host, turns, works, pool.fleet, on_note, engines=engines) as devices:
            yield msgspec.structs.replace(
                pool, capacity=lambda: max(1, pool.capacity()), follow=devices.follow
            )


def host_plan(
    plan: Plan,
    table: InputTable,
    host: HostFile,
    rule: Rule = place_operators,
    learnt: FlowProfile | None = None,
) -> tuple[list[OperatorWork], DevicePlan]:
    """Return the work of a batch of rows, estimated from the first rows, and its placement.

    A batch is as many rows as may be open. Operators without calls in these rows, as after a group,
    count as one call. `learnt` is the flow's profile (`kairos profile`).

    Raises:
        SetupError: As in `flow_work`; or no row can be read.
    """
    readable = (row.values for row in table.rows() if row.values is not None)
    sample = list(islice(readable, _SAMPLE))
    if not sample:
        raise SetupError("the table has no row that can be read: nothing can be placed")
    expected = table.expected_rows(len(sample)) or len(sample)
    batch = min(expected, OPEN_ROWS)
    found = _scaled(predict_flow(plan, sample), max(1.0, batch / len(sample)))
    works = hosted_work(plan, found, host, host.devices, learnt)
    return works, rule(works, host.loads, host.devices)


def hosted_work(
    plan: Plan, prediction: FlowPrediction, host: HostFile, devices: int, known: FlowProfile | None
) -> list[OperatorWork]:
    """Return what operators take on a host's devices, for plans and for runs.

    Factors of the host's file take precedence over the profile's.

    Raises:
        SetupError: a model of the flow is not in the host's file.
    """
    profiles = {name: load_profile(each.profile) for name, each in host.models.items()}
    learnt = None if known is None else profiles_by_operator(known, plan)
    factors = host.cost.over(UNKNOWN_FACTORS if known is None else known.cost)
    return work_of_flow(plan, prediction, profiles, devices, factors, learnt)


def device_turns(placed: DevicePlan) -> list[list[DeviceTurn]]:
    return [
        [DeviceTurn(model, operators) for model, operators in placed.models(device)]
        for device in range(placed.devices)
    ]


def _scaled(found: FlowPrediction, factor: float) -> FlowPrediction:
    found.rows = round(found.rows * factor)
    for each in found.by_operator.values():
        each.calls = round(each.calls * factor)
        each.prompt_tokens = round(each.prompt_tokens * factor)
        each.completion_tokens = round(each.completion_tokens * factor)
    return found
