"""What must hold of cycles in which an instance is killed and restarted, and how it is told."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import median

import msgspec

from kairos.core import SECOND, Bounced, Cancelled, Dispatch, Failed, Finished, Record
from tests.acceptance.chats import Goodput
from tests.acceptance.instance import How
from tests.soak.client import Outcome

DOWN = 0.45  # of what two instances do, at least, by one
RETURNED, RETURN_S = 0.9, 30.0  # so much of it, so long after an instance is ready again
WINDOW_S = 10.0  # of which goodput is told: calls take some seconds
_STEP_S = 0.5
_NOTICE_S = 2.0  # in which Kairos knows of the end of an instance, and its last words have come
_COLUMNS = (
    *("cycle", "killed", "both, tokens/s", "one", "share", "least of any 10 s"),
    *("down for (starting)", "back after", "share then", "calls ended", "passed on"),
)


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """Instants are seconds since the epoch."""

    victim: str  # an instance's id
    how: How
    began: float
    killed: float
    restarted: float
    ready: float
    ended: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of a cycle. Goodput in tokens per second; shares of what the two did before, in the same
    cycle: from one to the next, the speed of a machine may change."""

    before: float
    down: float
    down_share: float
    least_share: float  # of any window in which one was down
    back_s: float | None  # since it was ready, until the goodput of the last window was as before
    after_share: float  # from when that has to be so, to the end of the cycle


def figures(cycle: Cycle, goodput: Goodput) -> Figures:
    before = goodput.per_s(cycle.began, cycle.killed)
    down = goodput.per_s(cycle.killed, cycle.ready)
    windows = _windows(cycle.killed + WINDOW_S, cycle.ready)
    backs = _windows(cycle.ready, cycle.ended)
    return Figures(
        before=before,
        down=down,
        down_share=down / before,
        least_share=min(goodput.per_s(at - WINDOW_S, at) for at in windows) / before,
        back_s=next(
            (
                at - cycle.ready
                for at in backs
                if goodput.per_s(at - WINDOW_S, at) >= RETURNED * before
            ),
            None,
        ),
        after_share=goodput.per_s(cycle.ready + RETURN_S, cycle.ended) / before,
    )


def _windows(first: float, last: float) -> Iterator[float]:
    """When each ends."""
    yield first
    while (first := first + _STEP_S) <= last:
        yield first


def of_figures(number: int, each: Figures) -> Iterator[str]:
    if each.down_share <= DOWN:
        yield f"cycle {number}: one instance does {each.down_share:.0%} of what two did"
    if each.back_s is None or each.back_s > RETURN_S:
        yield (
            f"cycle {number}: goodput is back {_seconds(each.back_s)} after the instance was ready"
        )
    if each.after_share < RETURNED:
        yield f"cycle {number}: goodput does not stay back: {each.after_share:.0%}"


def of_outcomes(outcomes: Iterable[Outcome], hurt: Collection[str]) -> Iterator[str]:
    """Each call is answered, wherever that may be, but for a stream that had begun on an instance
    that was killed: it ends, and its client is told."""
    for each in outcomes:
        may_break = each.ask.streamed and each.ask.id in hurt
        if each.end == "answered" or (may_break and each.end in ("error in stream", "cut off")):
            continue
        yield f"{each.ask.id} was not answered: {each.end} {each.detail} ({each.seconds:.1f} s)"


def of_pins(cores: Sequence[Collection[int]]) -> Iterator[str]:
    """`cores`: on which processes of each instance may run."""
    for number, each in enumerate(cores, 1):
        if len(each) != 1:
            yield f"instance {number} is not on one core: {sorted(each)}"
    if len(set().union(*cores)) < len(cores):
        yield "instances share a core"


def killed_with(cycle: Cycle, records: Iterable[Record]) -> set[str]:
    """Calls that were on the instance when it was killed, or came until that was known."""
    there, found = set[str](), set[str]()
    for record in records:
        if record.at > (cycle.killed + _NOTICE_S) * SECOND:
            break
        if isinstance(record.event, Finished | Failed | Cancelled | Bounced):
            if record.at >= cycle.killed * SECOND and record.event.request_id in there:
                found.add(record.event.request_id)
            there.discard(record.event.request_id)
        there |= {
            each.request_id
            for each in record.commands
            if isinstance(each, Dispatch) and each.instance_id == cycle.victim
        }
    return found | there


def table(
    cycles: Sequence[Cycle], goodput: Goodput, outcomes: Sequence[Outcome], passed_on: Sequence[int]
) -> str:
    """In Markdown. `passed_on`: when calls went on elsewhere, in µs since the epoch."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
    told = [figures(each, goodput) for each in cycles]
    for number, (cycle, each) in enumerate(zip(cycles, told, strict=True), 1):
        cells = [
            str(number),
            f"{cycle.how} of {cycle.victim}",
            f"{each.before:.0f}",
            f"{each.down:.0f}",
            f"{each.down_share:.0%}",
            f"{each.least_share:.0%}",
            f"{cycle.ready - cycle.killed:.0f} s ({cycle.ready - cycle.restarted:.0f} s)",
            _seconds(each.back_s),
            f"{each.after_share:.0%}",
            ends([e for e in outcomes if _is_in(cycle, e.ended_at)]),
            str(sum(_is_in(cycle, at) for at in passed_on)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _in_words(told)])


def ends(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(f"{each.end} {each.detail}".strip() for each in outcomes)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


def _in_words(told: Sequence[Figures]) -> str:
    before = [each.before for each in told]
    return (
        f"two instances: median {median(before):.0f} tokens/s ({min(before):.0f} to "
        f"{max(before):.0f}); one down: {min(e.down_share for e in told):.0%} of it at least; back "
        f"after {' '.join(_seconds(each.back_s) for each in told)}"
    )


def _is_in(cycle: Cycle, at: int) -> bool:
    return cycle.began * SECOND <= at < cycle.ended * SECOND


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"
