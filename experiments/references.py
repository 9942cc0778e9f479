"""What orders are compared with besides policies: a table, and the most that recordings tell.

Neither runs in Kairos. Both learn from all of the training half at once.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np
from numpy.typing import NDArray

from experiments.playing import Played, facts, request_id
from experiments.recordings import RecordedCall
from kairos.core import Arrived, Finished
from kairos.core.position import Position
from kairos.core.workflow_tracker import WorkflowTracker


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A call when it arrived, with all that had been recorded of its workflow by then."""

    call: RecordedCall
    position: Position
    before: RecordedCall | None  # the call that arrived before it
    completed_tokens: int  # in the calls that had ended
    ended: int  # calls
    gaps_ms: int  # all gaps before the calls that had arrived, its own included
    agents: int  # different ones so far, its own included
    remaining_us: int  # the truth


def see(played: Played) -> list[Seen]:
    """The calls of a workflow, in the order of the file."""
    calls = {request_id(call): call for call in played.workflow}
    positions = WorkflowTracker()
    seen: dict[str, Seen] = {}
    remaining = dict(zip(calls, played.remaining_us, strict=True))
    before: RecordedCall | None = None
    agents: set[str] = set()
    completed = ended = gaps_ms = 0
    for at, event in facts(played, start_at=0):
        match event:
            case Arrived(request):
                call = calls[request.id]
                agents.add(call.agent)
                gaps_ms += call.gap_ms or 0
                seen[request.id] = Seen(
                    call=call,
                    position=positions.record_arrival(request, at),
                    before=before,
                    completed_tokens=completed,
                    ended=ended,
                    gaps_ms=gaps_ms,
                    agents=len(agents),
                    remaining_us=remaining[request.id],
                )
                positions.record_dispatch(request.id, at)
                before = call
            case Finished(request_id=id):
                positions.record_call_end(id, at, calls[id].completion_tokens)
                completed += calls[id].completion_tokens
                ended += 1
    return [seen[each] for each in calls]


def by_agent_and_step(learnt: Sequence[Seen], asked: Sequence[Seen]) -> list[float]:
    """Mean remaining work of the agent at this step of a workflow, µs; where that was never seen,
    of the agent; else of its app."""
    samples: dict[Hashable, list[int]] = defaultdict(list)
    for seen in learnt:
        for key in _names(seen):
            samples[key].append(seen.remaining_us)
    means = {key: fmean(values) for key, values in samples.items()}
    return [next((means[key] for key in _names(seen) if key in means), 0.0) for seen in asked]


def _names(seen: Seen) -> tuple[Hashable, ...]:
    """From the closest to the widest."""
    app, agent = seen.call.app, seen.call.agent
    return (app, agent, seen.position.stage), (app, agent), app


_NAMES = 7  # so many first columns of `_row` are names; the others are quantities


def all_features(learnt: Sequence[Seen], asked: Sequence[Seen], seed: int) -> list[float]:
    """ln of the remaining µs, by boosted trees on everything recorded: what bounds predictors.

    It is as near to the best as a strong learner comes that sees all of the training half at once:
    one model per application, settings found by trial on these recordings, over several seeds. It
    uses what no agent tells a server: gaps and their kind, turns, what will be found in the cache.
    """
    predicted: dict[int, float] = {}
    for app in {seen.call.app for seen in asked}:
        places = [n for n, seen in enumerate(asked) if seen.call.app == app]
        found = _boosted(
            [_row(seen) for seen in learnt if seen.call.app == app],
            [math.log(seen.remaining_us) for seen in learnt if seen.call.app == app],
            [_row(asked[n]) for n in places],
            seed,
        )
        predicted.update(zip(places, found, strict=True))
    return [predicted[n] for n in range(len(asked))]


Cell = str | float | None
Cells = tuple[Cell, ...]


def _boosted(
    rows: Sequence[Cells], values: Sequence[float], asked: Sequence[Cells], seed: int
) -> list[float]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits  # of scikit-learn

    # The learner takes no column of which nothing is known.
    columns = [c for c in range(len(rows[0])) if any(row[c] is not None for row in rows)]
    names = {c: _codes([row[c] for row in rows]) for c in columns if c < _NAMES}
    model = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=60,
        max_leaf_nodes=8,
        min_samples_leaf=min(20, max(3, len(rows) // 20)),
        categorical_features=list(range(len(names))),
        early_stopping=False,
        random_state=seed,
    )
    # So few calls are worth no second thread, which waits for the first more than it works.
    with threadpool_limits(1):
        model.fit(_matrix(rows, columns, names), values)
        return [float(each) for each in model.predict(_matrix(asked, columns, names))]


def _row(seen: Seen) -> Cells:
    call, position, before = seen.call, seen.position, seen.before
    cached = call.cached_prefix_tokens or 0
    return (
        call.app,
        call.agent,
        call.upstream,
        call.model,
        call.gap_kind,
        before.agent if before else None,
        before.upstream if before else None,
        call.turn,
        position.stage,
        position.visit,
        position.prompt_tokens,
        position.grown_tokens,
        position.served_us,
        position.last_completion_tokens,
        cached,
        call.prompt_tokens - cached,
        call.prompt_tokens - before.prompt_tokens if before else None,
        before.gap_ms if before else None,
        call.gap_ms,
        seen.gaps_ms,
        call.start_ms,
        seen.completed_tokens,
        seen.completed_tokens / seen.ended if seen.ended else None,
        seen.agents,
        float(call.parallel_group is not None),
    )


def _codes(values: Sequence[Cell]) -> dict[Cell, int]:
    """Numbers for the names of a column; the learner takes 255, so the most frequent ones."""
    counts = Counter(value for value in values if value is not None)
    frequent = sorted(counts, key=lambda name: (-counts[name], str(name)))
    return {name: code for code, name in enumerate(frequent[:255])}


def _matrix(
    rows: Sequence[Cells],
    columns: Sequence[int],
    names: Mapping[int, Mapping[Cell, int]],
) -> NDArray[np.float64]:
    """Shape [calls, columns]; what is not known, or was never seen before, is NaN."""
    table = [[names[c].get(row[c]) if c in names else row[c] for c in columns] for row in rows]
    return np.array(table, dtype=np.float64)
