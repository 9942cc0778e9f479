"""Program scheduling in the manner of vllm-router (0.1.17, `--enable-program-scheduling`): a
baseline, written from its documentation.

A workflow is a program. It has a home: the instance that a hash of its name picks at first. While a
call of it runs it is active; when the call has ended it stays so for a time to live, in which the
memory of its context is kept for its next call; then it is paused, and its memory is anybody's. An
active program's calls go to its home at once. A paused or a new one is admitted where the contexts
of all that is active leave room for its own: at home, else (`global_queue`) where the room is that
of its home and 1.2 times its context at least. Of those that wait, paused ones go first, the latest
used before the others; then new ones as they came; who has waited for 300 s goes before all others.

Deviations: a program's limit of 64 per instance is the instance's own; the time to live, of which
the documentation only names what it rests on (intervals between calls, what a miss costs, ten
seconds at most), is that of `core/dispatcher/kv_retention.py`; an active program that has outgrown
the memory waits as if it were paused, instead of others being paused for it; what prompts share
counts in each of them; and no decode gain ever admits a call beyond the memory.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence

import msgspec

from kairos.core import (
    SECOND,
    Instance,
    Ledger,
    Placement,
    Request,
    WorkEstimates,
    WorkflowKey,
    text_digest,
    workflow_key,
)
from kairos.core.dispatcher.kv_retention import KvRetention, time_to_live
from kairos.core.scheduler.policies import Key

BUFFER_TOKENS = 100  # by which an answer is expected to grow: `decode_buffer_tokens`
HEADROOM = 1.2  # of its context, to move: `cross_rank_headroom_ratio`
FORCED_US = 300 * SECOND  # `force_resume_timeout_seconds`
LONGEST_US = 10 * SECOND  # `max_acting_ttl_seconds`
WINDOW = 100  # gaps, before which nothing is kept: `stats_window_size`
_ACTIVE, _PAUSED, _NEW = 0.0, 1.0, 2.0


class Program(msgspec.Struct):
    """A workflow between two calls."""

    home: str  # instance id
    tokens: int  # of its context
    ended_at: int  # its last call
    until: int  # its memory is kept so long


class Programs(KvRetention):
    """In place of the ledger's own: what each call leaves behind, and for how long it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[WorkflowKey, Program] = {}
        self._between: defaultdict[str, dict[WorkflowKey, Program]] = defaultdict(dict)
        self._gaps_us: deque[float] = deque(maxlen=WINDOW)

    def ended(
        self, request: Request, instance: Instance, tokens: int, fill_us: float, at: int
    ) -> None:
        kept_us = 0
        if len(self._gaps_us) == WINDOW:
            kept_us = min(LONGEST_US, int(time_to_live(self._gaps_us, fill_us)))
        program = Program(instance.id, tokens, at, at + kept_us)
        self._known[workflow_key(request)] = program
        self._between[instance.id][workflow_key(request)] = program

    def arrived(self, request: Request, at: int) -> None:
        program = self.of(request)
        if program is not None:
            self._gaps_us.append(at - program.ended_at)

    def of(self, request: Request) -> Program | None:
        return self._known.get(workflow_key(request))

    def kept_tokens(self, instance_id: str, request: Request, at: int) -> int:
        """Of contexts between two calls there, but for the request's own."""
        here = self._between[instance_id]
        for key in [key for key, each in here.items() if each.until <= at]:
            del here[key]
        return sum(each.tokens for key, each in here.items() if key != workflow_key(request))


class ProgramOrder:
    """Active programs, then paused ones, then new ones."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def key(self, request: Request, _state: Hashable, /) -> Key:
        program = self._programs.of(request)
        if program is None:
            return _NEW, request.arrived_at
        if program.until > request.arrived_at:
            return _ACTIVE, request.arrived_at
        return _PAUSED, -program.ended_at

    def state(self, request: Request) -> Hashable:
        program = self._programs.of(request)
        return program and program.ended_at

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return FORCED_US


class ProgramPlacement(Placement):
    """Home, where there is room; else elsewhere, where there is more."""

    def __init__(self, ledger: Ledger, programs: Programs) -> None:
        self._ledger, self._programs = ledger, programs
        ledger.retention = programs

    def choose(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Instance | None:
        free = {each.id: self._free_tokens(each, request, at) for each in (*instances, *busy)}
        needed = request.prompt_tokens + BUFFER_TOKENS
        home = self._home(request, (*instances, *busy))
        if free[home] >= needed:
            return next((each for each in instances if each.id == home), None)  # None: it is busy
        least = max(free[home], 0.0) + HEADROOM * needed
        others = [each for each in instances if free[each.id] >= least]
        return max(others, key=lambda each: free[each.id], default=None)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:  # noqa: ARG002
        return float("inf")  # what is kept for the request itself is free for it

    def _home(self, request: Request, instances: Sequence[Instance]) -> str:
        program = self._programs.of(request)
        ids = sorted(each.id for each in instances)
        if program is not None and program.home in ids:
            return program.home
        return ids[text_digest("/".join(workflow_key(request))) % len(ids)]

    def _free_tokens(self, instance: Instance, request: Request, at: int) -> float:
        """For this request."""
        if instance.kv_tokens is None or not self._ledger.running(instance.id):
            return float("inf")
        growing = self._ledger.running(instance.id) * BUFFER_TOKENS
        held = self._ledger.held_tokens(instance.id, at) + growing
        return instance.kv_tokens - held - self._programs.kept_tokens(instance.id, request, at)


def program_scheduling() -> tuple[
    Callable[[WorkEstimates], ProgramOrder], Callable[[Ledger], ProgramPlacement]
]:
    """The policy and the placement of one run, which share what they know."""
    programs = Programs()
    return lambda _: ProgramOrder(programs), lambda ledger: ProgramPlacement(ledger, programs)
