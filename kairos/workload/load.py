"""What is offered to a pool, live or simulated: recorded workflows, and how they arrive."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kairos.errors import InvalidFile
from kairos.model import SECOND
from kairos.workload.arrival_process import arrivals, check_rate, time_scale
from kairos.workload.azure_trace import TRACE_HEADER, TraceRow, from_trace, read_trace
from kairos.workload.files import read_lines
from kairos.workload.submissions import scaled, submissions
from kairos.workload.workflow_file import Call
from kairos.workload.workflows import Submission, Workflow, load, workflow

ARRIVALS, RATE_PER_S = "azure-conv", 1.0
_TRACE_SUFFIXES = (".csv", ".csv.gz")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded workflows, and how they arrive; None: as the file says, else the default."""

    workflows: Path
    arrivals: str | None = None  # the name of a process, or an Azure trace
    rate_per_s: float | None = None
    count: int | None = None
    max_context: int | None = None


# Of a seed: submissions, and the time scale of their arrivals (see `burstiness`).
Offered = Callable[[int], tuple[Sequence[Submission], float]]


def offered(asked: Load) -> Offered:
    """The workflows are read once, here; arrivals that are an Azure trace's, for each seed.

    Raises:
        SetupError: there is no such process of arrivals, or no such rate.
        InvalidFile: a file does not hold what it should.
    """
    return _of_trace(asked) if _is_trace(asked.workflows) else _of_workflows(asked)


def _of_workflows(asked: Load) -> Offered:
    recorded = _scaled(load(asked.workflows), asked.max_context)
    return lambda seed: _arriving(recorded, asked, seed)


def _of_trace(asked: Load) -> Offered:
    """Each request of an Azure trace is a workflow of one call. Unless other arrivals are named,
    they come at their own instants, all gaps stretched alike where a rate is."""
    rows = read_trace(asked.workflows)
    for line, row in enumerate(rows, start=2):
        if min(row.prompt_tokens, row.completion_tokens) < 1:
            raise InvalidFile(asked.workflows, "a request without tokens", line=line)
    app = asked.workflows.name.split(".")[0]
    recorded = _scaled([_request(app, *each) for each in enumerate(rows, 1)], asked.max_context)
    if asked.arrivals is not None:
        return lambda seed: _arriving(recorded, asked, seed)
    if asked.count is not None and asked.count > len(rows):
        raise InvalidFile(
            asked.workflows, f"{asked.count} workflows wanted, the trace has {len(rows)} requests"
        )
    own_rate_per_s = (len(rows) - 1) * SECOND / rows[-1].at_us
    rate_per_s = own_rate_per_s if asked.rate_per_s is None else asked.rate_per_s
    check_rate(rate_per_s)
    scale = own_rate_per_s / rate_per_s
    chosen = [
        Submission(at_us=round(row.at_us * scale), workflow=each)
        for row, each in zip(rows, recorded, strict=True)
    ][: asked.count]
    return lambda _: (chosen, scale)


def _request(app: str, number: int, row: TraceRow) -> Workflow:
    call = Call(
        workflow_id=f"{app}-{number}",
        app=app,
        agent=app,
        upstream=None,
        call_index=0,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
    )
    return workflow([call])


def _arriving(recorded: list[Workflow], asked: Load, seed: int) -> tuple[list[Submission], float]:
    name = ARRIVALS if asked.arrivals is None else asked.arrivals
    rate_per_s = RATE_PER_S if asked.rate_per_s is None else asked.rate_per_s
    count = asked.count or len(recorded)
    if name.endswith(_TRACE_SUFFIXES):
        at_us, scale = from_trace(Path(name), count, rate_per_s, seed), 1.0
    else:
        at_us, scale = arrivals(name, count, rate_per_s, seed), time_scale(name, rate_per_s)
    return submissions(recorded, at_us, seed), scale


def _scaled(recorded: list[Workflow], max_context: int | None) -> list[Workflow]:
    return recorded if max_context is None else scaled(recorded, max_context)


def has_own_arrivals(asked: Load) -> bool:
    """Whether workflows come at the instants of a trace, which no seed changes."""
    return asked.arrivals is None and _is_trace(asked.workflows)


def _is_trace(path: Path) -> bool:
    first = next(read_lines(path), (0, b""))
    return first[1].strip() == TRACE_HEADER
