"""A line of the results, and what lines of the same arrivals say together."""

from collections.abc import Sequence

import msgspec

from experiments.fidelity_cpu import Cores
from experiments.fidelity_engines import Limits
from experiments.placements_vllm_run import LIMITS, POLICY, Ran
from kairos.core import SECOND, Interval, difference_interval
from kairos.core.metrics import spread

Spread = dict[str, float | None]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    commit: str
    repetition: int  # chooses workflows and arrivals
    place: int  # among the runs of the repetition, from 1
    placement: str
    policy: str
    model: str
    limits: Limits
    rate_per_s: float
    workflows: int
    calls: int
    e2e_s: Spread  # of workflows
    call_s: Spread
    ttft_s: Spread
    preemptions: int
    recomputed_tokens: int
    needed_tokens: int  # computed besides
    cached_tokens: int  # of prompts
    elapsed_s: float
    late_starts: int
    prompt_tokens_off: int
    cores: Cores

    @property
    def preemptions_per_call(self) -> float:
        return self.preemptions / self.calls

    @property
    def recomputed_share(self) -> float:
        """Of all tokens that were computed."""
        return self.recomputed_tokens / (self.recomputed_tokens + self.needed_tokens)


def row_of(
    ran: Ran, *, commit: str, repetition: int, place: int, placement: str, rate_per_s: float
) -> Row:
    replayed, counts = ran.replayed, ran.counts
    calls_us = [(row.ended_at or 0) - row.request.arrived_at for row in replayed.rows]
    return Row(
        commit=commit,
        repetition=repetition,
        place=place,
        placement=placement,
        policy=POLICY,
        model=replayed.model,
        limits=LIMITS,
        rate_per_s=rate_per_s,
        workflows=replayed.workflows,
        calls=len(replayed.rows),
        e2e_s=_short(replayed.metrics["e2e_s"]),
        call_s=_short(spread(us / SECOND for us in calls_us)),
        ttft_s=_short(replayed.metrics["ttft_s"]),
        preemptions=counts.preemptions,
        recomputed_tokens=ran.recomputed_tokens,
        needed_tokens=counts.needed_tokens,
        cached_tokens=counts.cached_tokens,
        elapsed_s=round(replayed.elapsed_s, 3),
        late_starts=replayed.late_starts,
        prompt_tokens_off=replayed.prompt_deviation.worst or 0,
        cores=ran.cores,
    )


def _short(given: Spread) -> Spread:
    return {name: None if value is None else round(value, 4) for name, value in given.items()}


def by_placement(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order of the repetitions, those of each that were played under every placement: of a
    repetition that was broken off nothing can be compared."""
    names = list(dict.fromkeys(row.placement for row in rows))
    played = [row.repetition for row in rows]
    whole = sorted({each for each in played if played.count(each) == len(names)})
    found = {(row.repetition, row.placement): row for row in rows}
    return {name: [found[repetition, name] for repetition in whole] for name in names}


def preemptions_per_call(rows: Sequence[Row]) -> float:
    """Of runs together."""
    return sum(row.preemptions for row in rows) / sum(row.calls for row in rows)


def recomputed_share(rows: Sequence[Row]) -> float:
    recomputed = sum(row.recomputed_tokens for row in rows)
    return recomputed / (recomputed + sum(row.needed_tokens for row in rows))


def times(rows: Sequence[Row], key: str) -> list[float]:
    """End to end, by repetition, in seconds; `key` names one of the spread."""
    return [row.e2e_s[key] or 0.0 for row in rows]


def slower(ours: Sequence[Row], theirs: Sequence[Row], key: str = "mean") -> Interval | None:
    """By how many seconds our workflows take longer, on the same arrivals: with the interval in
    which the mean over all arrivals lies in 95 of 100 cases. None: of one repetition."""
    return difference_interval(times(ours, key), times(theirs, key))
