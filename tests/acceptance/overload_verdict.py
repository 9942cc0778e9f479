"""What must hold of a Kairos that is offered twice what its engines can do, and after it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from kairos.core import SECOND, Arrived, Dispatch, Record
from tests.acceptance.restarts_verdict import ends
from tests.soak import verdict
from tests.soak.client import Outcome
from tests.soak.verdict import Sample

MAX_WAITING, MAX_WAIT_S = 200, 20
REFUSED_S = 0.05  # until the 99th of a hundred refused calls knows it
FULL = "429 queue_full"
SERVED = 0.9  # of the capacity, at least, by a Kairos that is overloaded
SLOWER = 1.1  # the same calls may take afterwards
MEMORY_MB = 72  # that may be kept afterwards: see `of_memory`


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    capacity_per_s: float  # calls, as measured before
    seconds: float  # of overload
    outcomes: Sequence[Outcome]  # of the calls of the overload
    waits_s: Mapping[str, float]  # of those of them that an instance got: in the queue
    light_before: Sequence[Outcome]  # of the same light load
    light_after: Sequence[Outcome]
    drained_s: float  # since the last was offered, until all were answered
    memory_before_mb: float
    memory_after_mb: float
    samples: Sequence[Sample]  # during the overload


def waits_s(records: Iterable[Record]) -> dict[str, float]:
    """In the queue, of each call that an instance got, until the first did."""
    arrived_at: dict[str, int] = {}
    waited: dict[str, float] = {}
    for record in records:
        if isinstance(record.event, Arrived):
            arrived_at[record.event.request.id] = record.at
        for each in record.commands:
            if isinstance(each, Dispatch) and each.request_id in arrived_at:
                waited.setdefault(
                    each.request_id, (record.at - arrived_at[each.request_id]) / SECOND
                )
    return waited


def judge(seen: Seen) -> Iterator[str]:
    refused = [each for each in seen.outcomes if each.detail == FULL]
    accepted = [each for each in seen.outcomes if each.detail != FULL]
    yield from of_refused(refused, seen)
    yield from of_accepted(accepted, seen)
    yield from of_light(seen.light_before, seen.light_after)
    yield from of_memory(seen)


def of_refused(refused: Sequence[Outcome], seen: Seen) -> Iterator[str]:
    if len(refused) < len(seen.outcomes) / 4:
        yield f"only {len(refused)} of {len(seen.outcomes)} calls were refused: no overload"
        return
    if (p99_s := percentile(_seconds(refused), 0.99)) >= REFUSED_S:
        yield f"a refused call knows it after {p99_s * 1000:.0f} ms (p99)"
    # Until a tenth of what waits will have gone, in whole seconds; its pace comes and goes.
    most_s = 2 * math.ceil(MAX_WAITING / 10 / seen.capacity_per_s)
    odd = {
        each.retry_after
        for each in refused
        if not (each.retry_after or "").isdigit() or not 1 <= int(each.retry_after or 0) <= most_s
    }
    if odd:
        yield f"Retry-After is {', '.join(map(str, odd))}, not 1 to {most_s}"


def of_accepted(accepted: Sequence[Outcome], seen: Seen) -> Iterator[str]:
    if lost := [each for each in accepted if each.end != "answered"]:
        yield f"calls were accepted, and not answered: {ends(lost)}"
    if unknown := {each.ask.id for each in accepted} - seen.waits_s.keys():
        yield f"of {len(unknown)} accepted calls the log does not know the wait"
    if (longest_s := max(seen.waits_s.values(), default=0.0)) > MAX_WAIT_S:
        yield f"an accepted call waited for {longest_s:.1f} s, and may for {MAX_WAIT_S} s"
    served = len(accepted) / (seen.seconds + seen.drained_s) / seen.capacity_per_s
    if served < SERVED:
        yield f"under overload {served:.0%} of the capacity is served"


def of_light(before: Sequence[Outcome], after: Sequence[Outcome]) -> Iterator[str]:
    if lost := [each for each in (*before, *after) if each.end != "answered"]:
        yield f"calls of the light load were not answered: {ends(lost)}"
        return
    for share in (0.5, 0.95):
        first_s, then_s = (percentile(_seconds(each), share) for each in (before, after))
        if then_s > SLOWER * first_s:
            yield (
                f"the same light load took {first_s * 1000:.0f} ms before, and takes "
                f"{then_s * 1000:.0f} ms (p{share * 100:.0f})"
            )


def of_memory(seen: Seen) -> Iterator[str]:
    """It may have grown by what is kept of calls that were answered: of the latest 32,768 replies
    a kB each, and the answer as it came, up to 64 MiB of all, until a call asks what it said; of
    workflows, 1,000 that ended. Some 9,000 answers of 5 kB come in five minutes. What is refused
    leaves nothing: the bodies of a third of it would show."""
    kept_mb = seen.memory_after_mb - seen.memory_before_mb
    if kept_mb > MEMORY_MB:
        yield f"after it {kept_mb:.0f} MB more are resident than before"
    yield from verdict.of_memory(seen.samples)


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest rank. At least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(seen: Seen) -> str:
    """In Markdown."""
    refused = [each for each in seen.outcomes if each.detail == FULL]
    accepted = [each for each in seen.outcomes if each.detail != FULL]
    offered_per_s = len(seen.outcomes) / seen.seconds
    retry = sorted({str(each.retry_after) for each in refused})
    rows = {
        "capacity, measured": f"{seen.capacity_per_s:.1f} calls/s",
        "offered": f"{offered_per_s:.1f} calls/s for {seen.seconds:.0f} s: {len(seen.outcomes)}",
        "refused": f"{len(refused)} ({ends(refused)}); Retry-After {', '.join(retry)} s",
        "time to a refusal": _times(_seconds(refused)),
        "accepted": f"{len(accepted)} ({ends(accepted)})",
        "wait in the queue": _times(list(seen.waits_s.values())),
        "it may be": f"{MAX_WAIT_S} s, others go first for {MAX_WAIT_S / 2:.0f} s; "
        f"in order of arrival it would be {MAX_WAITING / seen.capacity_per_s:.1f} s",
        "accepted calls, in all": _times(_seconds(accepted)),
        "until the last was answered": f"{seen.drained_s:.1f} s",
        "light load before": _times(_seconds(seen.light_before)),
        "the same after": _times(_seconds(seen.light_after)),
        "memory": _memory(seen),
    }
    lines = [f"| {name} | {said} |" for name, said in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _seconds(outcomes: Iterable[Outcome]) -> list[float]:
    return [each.seconds for each in outcomes]


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    p50, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(seconds) * 1000:.1f} ms"


def _memory(seen: Seen) -> str:
    most_mb = max(each.resident_bytes for each in seen.samples) / 1e6
    said = (
        f"{seen.memory_before_mb:.0f} MB before, {most_mb:.0f} MB under overload at most, "
        f"{seen.memory_after_mb:.0f} MB after"
    )
    growth = verdict.growth(seen.samples)
    if growth is None:
        return f"{said}; too short a run to say how it grows"
    return (
        f"{said}; {growth.resident_mb:+.0f} MB/hour in its second half: {growth.sent_mb:.0f} "
        "MB/hour came"
    )


def resident_mb(samples: Sequence[Sample]) -> float:
    """Of late."""
    return median(each.resident_bytes for each in samples[-10:]) / 1e6
