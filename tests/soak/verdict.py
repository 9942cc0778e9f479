"""What must hold after a soak, each with what is said where it does not.

None of it depends on how quick anything was, or on whether Kairos tries a failed call elsewhere: an
error that says so is an outcome.
"""

import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SECOND, Arrived, Cancelled, Failed, Finished, Record, Refuse
from kairos.proxy.call import KEEP_ALIVE_S
from tests.soak.asks import BURST_EVERY_S
from tests.soak.client import Outcome
from tests.soak.goodput import Goodput

_ERRORS = {"error", "error in stream", "cut off"}
_NEVER = {"no answer", "wrong error", "overdue"}
# How Kairos itself refuses a call that nothing was done to: full, nothing there, nobody reachable,
# deadline passed.
_REFUSALS = ("429 ", "503 ", "504 ")
# The same of a stream that waited for so long that it was told so, and with that status 200.
_REFUSALS_IN_STREAM = ("waited_too_long", "queue_full", "no_instance")
_SPARE_DESCRIPTORS = 8  # connections that are kept for a moment
_SLACK_US = 30 * SECOND  # until Kairos has noticed, however slow this machine is
_LEAKS = 0.8
_KEPT_KB = 8  # of a call, however short: by what its conversation is known, its workflow
_WARM_UP_S = 45.0  # in which memory grows by what Kairos needs anyway
_LAST_WORDS = 2000  # characters
SAMPLE_S = 1.0  # between two of memory
# Of what well engines could have served. Stand-ins: 93 to 96 % in runs of 90 s; 89 %, when
# each failure of one that is tried again leaves it alone for twice as long; 83 %, when the first
# leaves it alone for half a minute.
LEAST_SERVED = 0.87
_SHOWN = 5  # of the calls of which the same is said

Hurts = Mapping[str, Collection[str]]


class Sample(msgspec.Struct, frozen=True):
    at_s: float
    resident_bytes: int  # of Kairos's process
    calls: int  # by all clients so far
    sent_bytes: int  # of their bodies


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How Kairos stands once everybody has left it, after as long as it may take."""

    status: Mapping[str, Any]  # /admin/status
    descriptors_before: int
    descriptors: int
    running_in_engines: Mapping[str, float]
    exit_status: int
    said: str


def conclude(summary: str, wrong: Sequence[str], directory: Path) -> None:
    """The end of a command: what was seen and what does not hold. What the run wrote is kept only
    where something does not. Raises SystemExit: so it is."""
    print(f"\n{summary}")
    if wrong:
        sys.exit("\n".join(["", *wrong, f"logs and facts are in {directory}"]))
    shutil.rmtree(directory)
    print("all of it holds")


def of_calls(made: int, outcomes: Sequence[Outcome], hurts: Hurts) -> Iterator[str]:
    """`hurts`: what was done to calls on their way to engines, by id."""
    times = Counter(each.ask.id for each in outcomes)
    if twice := [name for name, count in times.items() if count > 1]:
        yield f"{len(twice)} calls have several outcomes{_named(twice)}"
    if len(times) != made:
        yield f"{made - len(times)} of {made} calls have no outcome"
    odd: dict[str, list[str]] = {}
    for each in outcomes:
        if (reason := _odd(each, hurts.get(each.ask.id, ()))) is not None:
            odd.setdefault(reason, []).append(f"{each.ask.id} ({each.detail})")
    for reason, names in odd.items():
        yield f"{len(names)} calls: {reason}{_named(names)}"


def _odd(outcome: Outcome, hurt: Collection[str]) -> str | None:
    """Why a call cannot have ended like this."""
    ask, end = outcome.ask, outcome.end
    if end in _NEVER:
        return end
    if end == "wrong answer" and "WrongBody" not in hurt:
        return f"wrong answer, and what an engine said was {'cut' if hurt else 'right'}"
    if end == "answered" and ask.kind != "well":
        return f"answered, though it was {ask.kind}"
    if hurt or ask.kind == "failing":
        return None
    if end == "error" and not outcome.detail.startswith(_expected(ask.kind)):
        return f"error {outcome.detail}, and nothing was done to it"
    is_refusal = outcome.seconds >= KEEP_ALIVE_S and outcome.detail in _REFUSALS_IN_STREAM
    if end in ("cut off", "error in stream") and ask.deadline_s is None and not is_refusal:
        return f"{end}, and nothing was done to it"
    return None


def _expected(kind: str) -> tuple[str, ...]:
    of_kinds = {
        "broken": ("400 ",),
        "stranger": ("404 ", *_REFUSALS),
        # An engine left while such a call ran there alone, or one with the same body.
        "poisonous": ("502 call_breaks_engines", *_REFUSALS),
    }
    return of_kinds.get(kind, _REFUSALS)


def of_log(records: Iterable[Record], outcomes: Iterable[Outcome], hurts: Hurts) -> Iterator[str]:
    """Every call that arrived ended once, and as its client saw it."""
    arrived, ended, refused = Counter[str](), Counter[str](), set[str]()
    last: dict[str, str] = {}
    ended_at: dict[str, int] = {}
    for record in records:
        match record.event:
            case Arrived(request=request):
                arrived[request.id] += 1
            case Finished() | Failed() | Cancelled() as fact:
                ended[fact.request_id] += 1
                last[fact.request_id] = type(fact).__name__
                ended_at[fact.request_id] = record.at
        refused |= {each.request_id for each in record.commands if isinstance(each, Refuse)}
    saw = {each.ask.id: each for each in outcomes}
    checks: dict[str, Collection[str]] = {
        "arrived more than once": [name for name, count in arrived.items() if count > 1],
        "arrived, and have no end": arrived.keys() - ended.keys() - refused,
        "arrived, and have several ends": [name for name, count in ended.items() if count > 1],
        "ended, and never arrived": ended.keys() - arrived.keys(),
        "arrived, and nobody made them": arrived.keys() - saw.keys(),
    }
    checks["answered, and not Finished"] = [
        name
        for name, each in saw.items()
        if each.end == "answered" and name not in hurts and last.get(name) != "Finished"
    ]
    checks["Finished, and their clients saw an error"] = [
        name for name, each in saw.items() if each.end in _ERRORS and last.get(name) == "Finished"
    ]
    checks["ended long after their clients were gone"] = [
        name for name, each in saw.items() if ended_at.get(name, 0) > each.ended_at + _SLACK_US
    ]
    for what, names in checks.items():
        if names:
            yield f"the log: {len(names)} calls {what}{_named(names)}"


def of_ending(ending: Ending) -> Iterator[str]:
    yield from _of_status(ending.status)
    for name, running in ending.running_in_engines.items():
        if running:
            yield f"{name} still works on {running:g} calls that nobody waits for"
    if ending.descriptors > ending.descriptors_before + _SPARE_DESCRIPTORS:
        yield (
            f"{ending.descriptors} descriptors are open, {ending.descriptors_before} were before "
            "the first call"
        )
    if ending.exit_status:
        yield f"kairos ended with status {ending.exit_status}"
    for sign in ("Traceback", "never retrieved", "was never awaited"):
        if sign in ending.said:
            start = ending.said.index(sign)
            yield f"kairos said '{sign}': {ending.said[start : start + _LAST_WORDS]}"


def of_settings(told: Mapping[str, int], unheard: int, said: str) -> Iterator[str]:
    """`told`: how often they were changed, by how; `unheard`: how often Kairos said nothing."""
    if unheard:
        yield f"of {unheard} changes of the settings nothing was said"
    if said.count("the settings stay as they are") != told["wrong"]:
        yield "settings that are wrong were not all refused, or others were"


def of_crash(said: str) -> str:
    """Kairos ended before it was told to."""
    return f"kairos ended by itself: {said[-_LAST_WORDS:]}"


def _of_status(status: Mapping[str, Any]) -> Iterator[str]:
    if status["waiting"]:
        yield f"{status['waiting']} requests still wait in the queue"
    for name, running in status["draining"].items():
        yield f"instance {name} is to stay, and drains: {running} calls"
    for name, instance in status["instances"].items():
        if instance["running"] or instance["kv_booked_tokens"]:
            yield (
                f"instance {name} has {instance['running']} calls booked, "
                f"{instance['kv_booked_tokens']} tokens"
            )
    for name, problem in status["not_in_use"].items():
        yield f"instance {name} is well again, and not in use: {problem}"


def of_recovery(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Calls that were made before anything was hurt, or once everything was well again."""
    for each in outcomes:
        if each.end != "answered":
            yield f"all is well, and {each.ask.id} was not answered: {each.end} {each.detail}"


def of_memory(samples: Sequence[Sample]) -> Iterator[str]:
    """Generous: what is kept of calls is bounded, but the bounds are not reached in minutes: in two
    of them it grew by 0.03 to 0.4 of what came. One who kept every body grew by 1.3 of it. Beside
    bodies that are short, what is kept of a call is large."""
    seen = growth(samples)
    if seen and seen.resident_mb > max(_LEAKS * seen.sent_mb, _KEPT_KB * seen.calls / 1e3):
        yield (
            f"resident memory grows by {seen.resident_mb:.0f} MB/hour where clients send "
            f"{seen.sent_mb:.0f} MB/hour in {seen.calls:.0f} calls"
        )


def of_goodput(seen: Goodput | None) -> Iterator[str]:
    """Of what could have been served, most was."""
    if seen is not None and seen.share < LEAST_SERVED:
        yield f"of {seen.could} calls that could have been served {seen.did} were: {seen.share:.1%}"


class Growth(msgspec.Struct, frozen=True):
    """In an hour."""

    resident_mb: float
    sent_mb: float
    calls: float


def growth(samples: Sequence[Sample]) -> Growth | None:
    """Of the second half, by least squares. None of a run in which less than a burst and what lies
    between two can be judged."""
    half = [each for each in samples[len(samples) // 2 :] if each.at_s >= _WARM_UP_S]
    if len(half) < BURST_EVERY_S / SAMPLE_S:
        return None
    at_h = [each.at_s / 3600 for each in half]

    def slope(values: Sequence[float]) -> float:
        return statistics.linear_regression(at_h, values).slope

    return Growth(
        resident_mb=slope([each.resident_bytes / 1e6 for each in half]),
        sent_mb=slope([each.sent_bytes / 1e6 for each in half]),
        calls=slope([each.calls for each in half]),
    )


def _named(names: Iterable[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return f": {', '.join(shown)}"
