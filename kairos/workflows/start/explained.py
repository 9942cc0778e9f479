"""Explain a flow without asking an engine: its plan, its forecast and its placement."""

from pathlib import Path

import msgspec

from kairos.core import SetupError
from kairos.engines import load_profile
from kairos.workflows.compile.costs.latency import TYPICAL_LATENCIES, measured_latencies
from kairos.workflows.compile.explain import (
    ExplainedPlacement,
    ExplainedPlan,
    explain_placement,
    explain_plan,
)
from kairos.workflows.compile.flow_profile import FlowProfile
from kairos.workflows.compile.forecast import forecast_flow
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.compile.prediction import FlowPrediction, predict_flow
from kairos.workflows.compile.primitives import primitive_lines
from kairos.workflows.run.engine_host import read_host
from kairos.workflows.run.flow_file import check_columns, load_flow
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.hosted_pool import hosted_work
from kairos.workflows.start.profile_file import known_profile, profile_path, read_profile


class ExplainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flow to explain, and what is known of its table, its engines and its rows."""

    flow: Path
    functions: Path | None = None
    inputs: Path | None = None  # table of rows
    passes: dict[str, bool] = {}  # the ones that are off
    host: Path | None = None  # file of devices that switch models
    devices: int | None = None  # in place of the number in the host's file
    learnt: Path | None = None  # profile of the flow; None: the one next to it
    engine_profile: str | None = None
    instances: int = 1  # engines of this profile


def explain_file(asked: ExplainOptions) -> ExplainedPlan:
    """Explain the plan of a flow, and predict its calls if a table is named.

    Raises:
        SetupError: The flow, its functions and the table do not fit together, or an option needs
            another one.
        InvalidFile: A profile or the host's file is malformed.
    """
    plan, known = _compiled(asked)
    prediction = expected = placement = None
    if asked.inputs is not None:
        table = open_table(asked.inputs)
        check_columns(plan, table)
        prediction = predict_flow(plan, (r.values for r in table.rows() if r.values is not None))
        if asked.engine_profile is not None and known is not None:
            readable = (row.values for row in table.rows() if row.values is not None)
            pool, rows = load_profile(asked.engine_profile), prediction.rows
            expected = forecast_flow(plan, known, readable, pool, asked.instances, rows)
    if asked.host is not None:
        placement = _placement(plan, prediction, asked.host, asked.devices, known)
    return explain_plan(plan, prediction, placement, expected)


def explain_primitives(asked: ExplainOptions) -> list[str]:
    """Return lines with the engines' work for a row of a flow, part by part.

    Raises:
        SetupError: As in `explain_file`.
    """
    return list(primitive_lines(_compiled(asked)[0].primitives()))


def _compiled(asked: ExplainOptions) -> tuple[Plan, FlowProfile | None]:
    """Return the plan, and the flow's profile."""
    loaded = load_flow(asked.flow, asked.functions)
    costs, known = TYPICAL_LATENCIES, known_profile(asked.learnt, asked.flow)
    if asked.engine_profile is not None:
        if asked.inputs is None:
            raise SetupError("name the table that --engine-profile is to be reckoned for: --inputs")
        known = known or read_profile(profile_path(asked.flow))
        engine = load_profile(asked.engine_profile)
        costs = measured_latencies(engine, known.answers, known.times_us)
    batches = {} if known is None else known.efficient_batches
    passes = Passes(**asked.passes)
    plan = compile_plan(loaded.declaration, passes, latencies=costs, batches=batches)
    loaded.functions.check(plan)
    return plan, known


def _placement(
    plan: Plan,
    prediction: FlowPrediction | None,
    path: Path,
    devices: int | None,
    known: FlowProfile | None,
) -> ExplainedPlacement:
    """Place a table's calls on the devices of a host's file."""
    if prediction is None:
        raise SetupError("--host places the calls of a table's rows: name it with --inputs FILE")
    host = read_host(path)
    number = devices or host.devices
    works = hosted_work(plan, prediction, host, number, known)
    return explain_placement(works, host.loads, number)
