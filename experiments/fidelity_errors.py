"""How the two sides of a run are compared: figures of each side's calls, and how far they are
apart.

Both are computed alike from the calls as their client saw them: a workflow from the instant at
which it was asked for to the end of its last call, a call from its arrival at Kairos to its last
token, queueing included.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kairos.core import SECOND, CallRow
from kairos.core.metrics import spread

MEAN_E2E = "workflow, mean s"
PREEMPTIONS, CACHED = "preemptions", "cached tokens"


class Sides(msgspec.Struct, frozen=True):
    """A figure of a run, on either side."""

    real: float | None
    model: float | None


def compare(
    real: Sequence[CallRow], model: Sequence[CallRow], *, real_preemptions: int
) -> dict[str, Sides]:
    """By the figure's name. vLLM counts preemptions by engine, the model by call."""
    theirs, ours = _figures(real), _figures(model)
    theirs[PREEMPTIONS] = real_preemptions
    ours[PREEMPTIONS] = sum(row.preemptions or 0 for row in model)
    return {name: Sides(theirs[name], ours[name]) for name in theirs}


def error_percent(sides: Sequence[Sides]) -> float | None:
    """Of the model, over runs together, signed: 10 is a tenth too much. None: the real figure is
    nothing, and the model's is not, or one of them is not known."""
    real = [each.real for each in sides if each.real is not None]
    model = [each.model for each in sides if each.model is not None]
    if not len(real) == len(model) == len(sides):
        return None
    if sum(real) == 0:
        return 0.0 if sum(model) == 0 else None
    return 100 * (sum(model) / sum(real) - 1)


def _figures(rows: Sequence[CallRow]) -> dict[str, float | None]:
    times = {
        "workflow": (us / SECOND for us in _workflows_us(rows)),
        "call": ((_told(row.ended_at) - row.request.arrived_at) / SECOND for row in rows),
        "first token": (
            (_told(row.first_token_at) - row.request.arrived_at) / SECOND for row in rows
        ),
        "token": _per_token_s(rows),
    }
    spreads = {name: spread(values) for name, values in times.items()}
    return {
        **{f"{name}, {key} s": of[key] for name, of in spreads.items() for key in ("mean", "p95")},
        CACHED: sum(row.cached_tokens or 0 for row in rows),
    }


def _workflows_us(rows: Iterable[CallRow]) -> list[int]:
    """How long each took."""
    started = {row.request.workflow_id: row.request.workflow_started_at for row in rows}
    return [at - started[workflow_id] for workflow_id, at in _ends(rows).items()]


def _ends(rows: Iterable[CallRow]) -> dict[str, int]:
    """When the last call of each workflow ended."""
    ends: dict[str, int] = {}
    for row in rows:
        workflow_id = row.request.workflow_id
        ends[workflow_id] = max(ends.get(workflow_id, 0), _told(row.ended_at))
    return ends


def _per_token_s(rows: Iterable[CallRow]) -> Iterator[float]:
    """From the first token to the last, of answers that have two."""
    for row in rows:
        tokens = _told(row.completion_tokens)
        if tokens > 1:
            yield (_told(row.ended_at) - _told(row.first_token_at)) / SECOND / (tokens - 1)


def capacity_per_s(rows: Sequence[CallRow], slots: int) -> float:
    """Workflows that engines end in a second while they have all that they can do: of more
    workflows than there are slots, all there from the start, from the first end until fewer are
    left. Measured in answers' tokens of calls that ended, at as many as a workflow has on average:
    by then, more has been begun than was ended."""
    ends = sorted(_ends(rows).values())
    assert len(ends) > slots + 1, "not enough workflows to fill the engines"
    first, last = ends[0], ends[len(ends) - slots]
    ended = sum(_told(r.completion_tokens) for r in rows if first < _told(r.ended_at) <= last)
    each = sum(_told(row.completion_tokens) for row in rows) / len(ends)
    return ended / each * SECOND / (last - first)


def median_error(values: Iterable[float | None]) -> float:
    """Of signed errors, without their signs."""
    return statistics.median(abs(value) for value in values if value is not None)


def _told(value: int | None) -> int:
    assert value is not None, "a call of a workflow that ended was streamed to its end"
    return value
