"""Load of a pool, live or simulated: recorded workflows, and their arrivals."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from kairos.core import SECOND, InvalidFile, SetupError
from kairos.simulate.workload.arrival_process import (
    Burstiness,
    arrival_model,
    check_rate,
    draw_arrivals,
    measure_burstiness,
    time_scale,
)
from kairos.simulate.workload.azure_trace import TraceRow, from_trace, is_trace, read_trace
from kairos.simulate.workload.submissions import draw_submissions, scaled
from kairos.simulate.workload.traces import fetched_data_set
from kairos.simulate.workload.workflow_file import FileCall
from kairos.simulate.workload.workflows import Submission, Workflow, load_workflows, workflow

ARRIVALS, RATE_PER_S = "azure-conv", 1.0
_TRACE_SUFFIXES = (".csv", ".csv.gz")
_LONG_SERIES = 20_000  # arrivals, which show the burstiness of a process


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded workflows, and how they arrive; None: as the file says, else the default."""

    workflows: Path
    arrivals: str | None = None  # the name of a process, or an Azure trace
    rate_per_s: float | None = None
    count: int | None = None
    max_context: int | None = None


# Submissions, and the time scale of their arrivals (see `burstiness`).
Arriving = tuple[Sequence[Submission], float]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """Workflows that were read once, and their arrivals for each seed."""

    of: Callable[[int], Arriving]  # of a seed
    has_own_instants: bool  # the file's, which no seed changes


def offered_workload(asked: Load) -> Offered:
    """Read the load.

    Unless other arrivals are given, workflows arrive at the instants in the file, with all gaps
    stretched equally if a rate is given.

    Raises:
        SetupError: The arrival process or the rate is invalid.
        InvalidFile: A file is malformed.
    """
    recorded, at_us = _requests(asked) if is_trace(asked.workflows) else _workflows(asked)
    if asked.max_context is not None:
        recorded = scaled(recorded, asked.max_context)
    if asked.arrivals is not None or at_us is None:
        return Offered(of=partial(_arriving, recorded, asked), has_own_instants=False)
    chosen = _at_own_instants(recorded, at_us, asked)
    return Offered(of=lambda _: chosen, has_own_instants=True)


def _workflows(asked: Load) -> tuple[list[Workflow], list[int] | None]:
    """Return the workflows by their beginnings, in µs from the first.

    None: some have no instant, or all have the same.
    """
    recorded = load_workflows(asked.workflows)
    starts = {each.id: each.calls[0].workflow_start_ms for each in recorded}
    known = [start for start in starts.values() if start is not None]
    first = min(known, default=0)
    if len(known) < len(recorded) or first == max(known):
        return recorded, None
    recorded.sort(key=lambda each: starts[each.id] or 0)
    return recorded, [1000 * (start - first) for start in sorted(known)]


def _requests(asked: Load) -> tuple[list[Workflow], list[int]]:
    """Return each request of an Azure trace as a workflow of one call."""
    rows = read_trace(asked.workflows)
    for line, row in enumerate(rows, start=2):
        if min(row.prompt_tokens, row.completion_tokens) < 1:
            raise InvalidFile(asked.workflows, "a request without tokens", line=line)
    app = asked.workflows.name.split(".")[0]
    return [_request(app, *each) for each in enumerate(rows, 1)], [row.at_us for row in rows]


def _at_own_instants(recorded: list[Workflow], at_us: list[int], asked: Load) -> Arriving:
    if asked.count is not None and asked.count > len(recorded):
        raise InvalidFile(
            asked.workflows,
            f"{asked.count} workflows wanted, the file has {len(recorded)}, each with its instant; "
            "name arrivals, and they come again",
        )
    own_rate_per_s = (len(recorded) - 1) * SECOND / at_us[-1]
    rate_per_s = own_rate_per_s if asked.rate_per_s is None else asked.rate_per_s
    check_rate(rate_per_s)
    scale = own_rate_per_s / rate_per_s
    planned = [
        Submission(at_us=round(at * scale), workflow=each)
        for at, each in zip(at_us, recorded, strict=True)
    ]
    return planned[: asked.count], scale


def _request(app: str, number: int, row: TraceRow) -> Workflow:
    call = FileCall(
        workflow_id=f"{app}-{number}",
        app=app,
        agent=app,
        upstream=None,
        call_index=0,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
    )
    return workflow([call])


def _arriving(recorded: list[Workflow], asked: Load, seed: int) -> Arriving:
    name = ARRIVALS if asked.arrivals is None else asked.arrivals
    rate_per_s = RATE_PER_S if asked.rate_per_s is None else asked.rate_per_s
    count = asked.count or len(recorded)
    if name.endswith(_TRACE_SUFFIXES):
        at_us, scale = from_trace(Path(name), count, rate_per_s, seed), 1.0
    else:
        at_us, scale = draw_arrivals(name, count, rate_per_s, seed), time_scale(name, rate_per_s)
    return draw_submissions(recorded, at_us, seed), scale


class PlannedArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Planned arrivals with their burstiness."""

    at_us: list[int]
    source: str  # the trace itself, or a process like it
    here: Burstiness  # of these arrivals, as far as so few show
    process: Burstiness  # of a long series of the same process
    trace: Burstiness  # of the trace behind it


def plan_arrivals(name: str, count: int, rate_per_s: float, seed: int) -> PlannedArrivals:
    """Return a trace's own arrivals if it has been fetched, else arrivals of a similar process.

    Raises:
        SetupError: The process is unknown, or the rate is not above 0.
    """
    scale = time_scale(name, rate_per_s)
    long = draw_arrivals(name, _LONG_SERIES, rate_per_s, seed)
    at_us, source = draw_arrivals(name, count, rate_per_s, seed), "generated like it"
    if name.startswith("azure-"):
        try:
            path = fetched_data_set(name)
            at_us, source = from_trace(path, count, rate_per_s, seed), "the trace itself"
        except SetupError:
            source += f"; `kairos traces fetch {name}` for the trace itself"
    model = arrival_model(name)
    return PlannedArrivals(
        at_us=at_us,
        source=source,
        here=measure_burstiness(at_us, scale),
        process=measure_burstiness(long, scale),
        trace={"cv": model.cv, "index_of_dispersion": {**model.index_of_dispersion}},
    )
