"""One user task, as far as it was seen, and what it teaches once it has ended."""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from kairos.core.agent_key import AgentKey, agent_key
from kairos.core.call_row import CallRow
from kairos.core.model import Request
from kairos.core.orchestrator.graph import CallGraph
from kairos.core.orchestrator.learning_data import AppKey
from kairos.core.orchestrator.learnt_joins import LearntJoins, SeenJoin
from kairos.core.orchestrator.open_workflows import OpenWorkflow, WorkflowCall
from kairos.core.orchestrator.profiles import CallSample
from kairos.core.orchestrator.remaining import Remaining, remaining, remaining_of_chain
from kairos.core.orchestrator.spans import Span
from kairos.core.workflow_tracker import WorkflowKey

# An agent's key: a call of it was not learnt from.
Lesson = CallSample | SeenJoin | AgentKey
MAX_CALLS = 10_000  # of one workflow
# What a remembered call takes, as measured: by itself, and for each hash and each name.
_CALL_BYTES, _HASH_BYTES, _NAME_BYTES = 1_500, 44, 60


def bytes_of(request: Request) -> int:
    """Return how much memory a call takes that is remembered."""
    parents = request.parent_ids
    names = _NAME_BYTES * len(parents) + sum(map(len, parents)) + len(request.model or "")
    return _CALL_BYTES + _HASH_BYTES * len(request.prefix) + names


class OpenedWorkflow:
    """One user task, as far as it was seen."""

    __slots__ = (
        "calls",
        "cancelled",
        "ended_at",
        "held_bytes",
        "idle",
        "in_flight",
        "is_whole",
        "key",
        "left_out",
        "seen_at",
    )

    def __init__(self, key: WorkflowKey, at: int) -> None:
        self.key = key
        self.calls: list[WorkflowCall] = []  # in order of arrival
        self.held_bytes = 0  # that its calls take
        self.left_out = 0  # calls beyond `MAX_CALLS`
        self.in_flight: set[str] = set()  # ids of its calls
        self.seen_at = at
        self.ended_at: int | None = None
        self.cancelled = False  # what would have come is not known
        self.idle = False  # it ended because nothing more was heard of it
        self.is_whole = True  # seen from its start

    def add(self, call: WorkflowCall) -> int:
        """Add a call, and return how many bytes it takes."""
        self.calls.append(call)
        size_bytes = bytes_of(call.row.request)
        self.held_bytes += size_bytes
        return size_bytes

    @property
    def app(self) -> AppKey:
        """The app of its first call."""
        request = self.calls[0].row.request
        return agent_key(request)[:2]

    def graph(self, skew_us: int = 0, joins: LearntJoins | None = None) -> CallGraph:
        """The call graph of the calls that have ended; O(n log n), built when it is asked for.

        What arrived again under an id is the next attempt at that call, also where the client did
        not count: clients that try again by themselves send the same headers.
        """
        known = joins.of(self.app) if joins is not None and self.calls else None
        graph = CallGraph(skew_us=skew_us, known=known)
        attempts: Counter[str] = Counter()
        for call in self.calls:
            attempts[call.row.request.id] += 1
            if call.row.ended_at is not None:
                attempt = attempts[call.row.request.id]
                graph.add(msgspec.structs.replace(span_of(call.row), attempt=attempt))
        return graph

    def _remaining(
        self, ids: Collection[str], skew_us: int, joins: LearntJoins | None
    ) -> tuple[Mapping[str, Remaining], list[SeenJoin]]:
        """Return the remainders from each call on, and the sightings of calls that may be joins.

        Most workflows need no graph for that. `ids`: of all calls.
        """
        if len(ids) == len(self.calls):  # each was tried once
            found = remaining_of_chain([span_of(call.row) for call in self.calls])
            if found is not None:
                return found, []
        graph = self.graph(skew_us, joins)
        if self.cancelled or self.left_out:
            return remaining(graph), []
        return remaining(graph), [SeenJoin(self.app, each) for each in graph.sightings()]

    def standing(self, served_us: int) -> OpenWorkflow:
        """As it is now, not ended. `served_us`: the execution latency of the calls that ended."""
        calls, running = self.calls, len(self.in_flight)
        if not running:
            return OpenWorkflow(served_us, [*calls], [])
        if running == 1 and calls[-1].row.ended_at is None:
            return OpenWorkflow(served_us, calls[:-1], calls[-1:])
        return OpenWorkflow(
            served_us,
            [call for call in calls if call.row.ended_at is not None],
            [call for call in calls if call.row.ended_at is None],
        )

    def lessons(self, skew_us: int = 0, joins: LearntJoins | None = None) -> list[Lesson]:
        """Return the lessons of the workflow, which has ended, with the joins that are known.

        Pure; O(n log n), 25 µs a call, or 6 where each call followed the one before.

        Of a call that failed or was cancelled, and of those before it whose rest is therefore not
        known, only whose they were: they are counted, and never learnt as short. So of all calls of
        a workflow that was cancelled, and of one that ended without having been dispatched: whoever
        performed it followed an order for an earlier call of its id. Of a workflow that was under
        way when it was first seen, nothing: where its calls stood is not known.
        """
        if not self.is_whole:
            return []
        last_attempts = {call.row.request.id: call for call in self.calls}
        rest, seen = self._remaining(last_attempts.keys(), skew_us, joins)
        lessons: list[Lesson] = [*seen]
        for request_id, call in last_attempts.items():
            row, left = call.row, rest[request_id]
            if left.censored or self.cancelled or self.left_out or row.dispatched_at is None:
                lessons.append(agent_key(row.request))
                continue
            assert row.ended_at is not None
            lessons.append(
                CallSample(
                    key=agent_key(row.request),
                    position=call.position,
                    call_us=row.ended_at - row.dispatched_at,
                    completion_tokens=row.completion_tokens,
                    remaining_us=max(1, left.work_us),
                    remaining_stages=left.stages,
                )
            )
        return lessons


def span_of(row: CallRow) -> Span:
    """A call that ended, as the graph takes it."""
    request = row.request
    assert row.ended_at is not None
    began_at = row.dispatched_at if row.dispatched_at is not None else row.ended_at
    return Span(
        id=request.id,
        agent=request.agent or "",
        upstream=request.upstream,
        parent_ids=request.parent_ids,
        attempt=request.attempt,
        queued_us=began_at - request.arrived_at,
        started_at=began_at,
        finished_at=row.ended_at,
        outcome="cancelled" if row.outcome == "refused" else row.outcome or "cancelled",
    )
