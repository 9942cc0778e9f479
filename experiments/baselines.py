"""Policies and placements that only a comparison needs."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist

from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.oracle import KnownLengths, Srpt
from experiments.program_scheduling import program_scheduling
from kairos.core import (
    SECOND,
    EngineProfile,
    Ledger,
    Placement,
    Policy,
    Request,
    WorkEstimates,
    text_digest,
    workflow_key,
)
from kairos.core.dispatcher.slots import TimeSlot
from kairos.core.scheduler.policies import Key, LeastWorkLeft
from kairos.simulate import Workflow
from kairos.simulate.workload.workflows import Submission
from kairos.simulate.world import token_us

DEFAULT = "kairos"
ORACLE = "oracle"  # the default placement, told every length
AYO_PUBLISHED, SRPT, PROGRAMS = "ayo-published", "srpt", "programs"
MISJUDGED_TIMES = (2, 4)
SLOT_LENGTHS_S = (0.1, 0.25, 1.0, 2.0, 5.0)  # beside the paper's 0.5


def off(times: int) -> str:
    """The default policy with its estimates off by such a factor: its name."""
    return f"{DEFAULT}, off {times} times"


def slotted(slot_s: float) -> str:
    """The paper's placement with slots of another length: its name."""
    return f"time-slot of {slot_s:g} s"


MakePolicy = Callable[[WorkEstimates], Policy]
MakePlacement = Callable[[Ledger], Placement]


def made(
    policy: str, placement: str, planned: Sequence[Submission], engine: EngineProfile
) -> tuple[MakePolicy, MakePlacement]:
    """Both, for one run of what is planned on such engines."""
    if policy == PROGRAMS:
        return program_scheduling()
    extra: dict[str, MakePolicy] = {
        AYO_PUBLISHED: AyoPublished,
        SRPT: lambda _: Srpt(true_remaining_us(planned, engine)),
        **{off(times): partial(Misjudging, times) for times in MISJUDGED_TIMES},
    }
    make_policy = extra[policy] if policy in extra else POLICIES[policy]
    slots = {slotted(s): partial(TimeSlot, slot_us=s * SECOND) for s in SLOT_LENGTHS_S}
    if placement != ORACLE:
        return make_policy, (PLACEMENTS | slots)[placement]
    lengths = true_lengths(planned)

    def told(ledger: Ledger) -> Placement:
        ledger.lengths = KnownLengths(ledger.lengths, lengths)
        return PLACEMENTS[DEFAULT](ledger)

    return make_policy, told


class AyoPublished:
    """Ayo (5.2, algorithm 2): of each workflow the waiting calls with most stages to come, in the
    order in which the first of the workflows' calls came; those with fewer stages go later.

    Deviations: where room is left after a round of all workflows there is another one; calls that
    run count as calls that wait, until they end; stages are learnt, as the mean of the agent's.
    """

    def __init__(self, estimates: WorkEstimates) -> None:
        self._estimates = estimates

    def key(self, request: Request, state: tuple[int, tuple[float, ...]], /) -> Key:
        came_at, levels = state
        stages = self._stages(request)
        turn = sum(level > stages for level in levels)
        return turn, came_at, request.workflow_started_at, request.arrived_at

    def state(self, request: Request) -> tuple[int, tuple[float, ...]]:
        together = [*self._estimates.in_flight(workflow_key(request))]
        levels = {self._stages(each) for each in together}
        return min(each.arrived_at for each in together), tuple(sorted(levels))

    def _stages(self, request: Request) -> float:
        profile = self._estimates.profile(request)
        return profile.remaining_stages if profile else 0.0

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


class Misjudging(LeastWorkLeft):
    """Takes what is left of each workflow for so many times as much or as little, log-normally; of
    a workflow always by the same factor, drawn from its name."""

    def __init__(self, times: float, estimates: WorkEstimates) -> None:
        super().__init__(estimates)
        self._levels = math.log(times) / math.log(self.LEVEL)

    def key(self, request: Request, state: int, /) -> Key:
        level, *rest = super().key(request, state)
        share = (text_digest(request.workflow_id) + 0.5) / 2**64
        return level + self._levels * NormalDist().inv_cdf(share), *rest


def true_lengths(planned: Sequence[Submission]) -> dict[str, int]:
    """Tokens of every answer, by the id of the request."""
    return {
        f"{each.workflow.id}/{position}": call.completion_tokens
        for each in planned
        for position, call in enumerate(each.workflow.calls)
    }


def true_remaining_us(planned: Sequence[Submission], engine: EngineProfile) -> Mapping[str, float]:
    """What calls take from each on, its own included: the longest path of them to the workflow's
    end, by the id of the request. Tools' and users' time is no work."""
    each_us = token_us(engine)
    remaining: dict[str, float] = {}
    for submission in planned:
        for position, us in enumerate(_remaining_us(submission.workflow, engine, each_us)):
            remaining[f"{submission.workflow.id}/{position}"] = us
    return remaining


def _remaining_us(workflow: Workflow, engine: EngineProfile, token_us: float) -> list[float]:
    after = [0.0] * len(workflow.calls)
    remaining = after.copy()
    for position in reversed(range(len(workflow.calls))):
        call = workflow.calls[position]
        computed = call.prompt_tokens - (call.cached_prefix_tokens or 0)
        own = computed * engine.step.prefill_token_us + call.completion_tokens * token_us
        remaining[position] = own + after[position]
        for before in workflow.waits_for[position]:
            after[before] = max(after[before], remaining[position])
    return remaining
