"""`python -m tests.faults.matrix > docs/faults.md`: what becomes of a call when an instance fails.

Each cell is proved by a test (`test_matrix.py`): two instances, of which the one that has the call,
or is to have it, fails at that moment; the other is well, until it gets what broke the first.
"""

from collections.abc import Awaitable, Callable

import msgspec

from tests.faults.faults import (
    Cut,
    Drip,
    EngineDies,
    Fault,
    HangUp,
    Noise,
    Stall,
    Status,
    WrongBody,
)
from tests.faults.proxy import Proxy
from tests.faults.villain import Mortal

QUEUED, BEFORE, AMID, IDLE = MOMENTS = (
    "waits in the queue",
    "has not had the first byte",
    "is in the middle of its stream",
    "comes later, to an instance that had none",
)
ELSEWHERE = "answered by another instance"
THERE = "answered by that instance"
ANSWERED = "answered"
ERROR = "the stream ends with an error event"
TOLD = "400, as the instance said"
CUT = "504 (`answer_timeout`)"
NONE = "(cannot be)"

Blow = Callable[[Proxy], Awaitable[None]]


class Row(msgspec.Struct, frozen=True):
    """A fault: what is done to the calls that come, or to one amid its stream, or to the instance
    as a whole, or what it does at somebody else's poisonous call; and what becomes of the call at
    each of `MOMENTS`."""

    what: str
    cells: tuple[str, str, str, str]
    call: Fault | None = None
    amid: Fault | None = None
    instance: Blow | None = None
    poison: Callable[[Mortal], None] | None = None
    whole: bool = False  # of calls whose answers come whole


async def dies(proxy: Proxy) -> None:
    await proxy.refuse()


async def closes_idle(proxy: Proxy) -> None:
    proxy.close_idle()


async def accepts_slowly(proxy: Proxy) -> None:
    proxy.accept_delay_s = 0.5
    proxy.close_idle()


_ANEW = (ELSEWHERE, ELSEWHERE, ERROR, ELSEWHERE)
_UNBEGUN = (ELSEWHERE, ELSEWHERE, NONE, ELSEWHERE)
_CUT = (CUT, CUT, ERROR, CUT)  # while nothing is known of the instance's pace

ROWS = (
    Row("its process dies: connections break, then are refused", _ANEW, instance=dies),
    Row(
        "the engine dies behind its API, which says so in the stream",
        _ANEW,
        EngineDies(after_events=0),
        EngineDies(after_events=4),
    ),
    Row("it breaks the connection", _ANEW, Cut(), Cut(after_events=4)),
    Row("it hangs, and /health is well", _CUT, Stall(), Stall(after_events=4)),
    Row("it shuts down: 500 for what comes", _UNBEGUN, Status(500)),
    Row("it is overloaded: 503", _UNBEGUN, Status(503)),
    Row("it answers what is not HTTP", _UNBEGUN, Noise()),
    Row("it answers what is no JSON", _UNBEGUN, WrongBody(), whole=True),
    Row("it answers a stream that is none", _UNBEGUN, WrongBody(streamed=True)),
    Row("it does not serve the model: 404", _UNBEGUN, Status(404)),
    Row("it is asked too much: 429", _UNBEGUN, Status(429)),
    Row("it refuses Kairos's key: 401", _UNBEGUN, Status(401)),
    Row("it judges the call wrong: 400", (TOLD, TOLD, NONE, TOLD), Status(400)),
    Row(
        "it sends four bytes a second",
        _CUT,
        Drip(bytes_per_s=4),
        Drip(bytes_per_s=4, after_events=4),
    ),
    Row("it takes half a second to accept", (THERE,) * 4, instance=accepts_slowly),
    Row("it closes connections that were kept", (THERE,) * 4, HangUp(), instance=closes_idle),
    Row(
        "it breaks the connection of somebody else's call, as any does",
        (ANSWERED, THERE, THERE, ANSWERED),
        poison=Mortal.break_at_poison,
    ),
    Row(
        "its process dies of somebody else's call, as any would, and is started again",
        (ANSWERED, ANSWERED, ERROR, ANSWERED),
        poison=Mortal.die_at_poison,
    ),
)


def table() -> str:
    """In Markdown."""
    head = ("an instance fails: ", *(f"the call {moment}" for moment in MOMENTS))
    lines = [head, ("---",) * len(head), *((row.what, *row.cells) for row in ROWS)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PAGE = f"""# What becomes of a call when an instance fails

Made by `python -m tests.faults.matrix`; each cell is proved by `tests/faults/test_matrix.py`, with
two instances, one of which is well. A call is tried on two others at most, and not beyond its
deadline. Where no other instance is left, the client gets the last one's own error, or 503
(`upstream_unreachable`).

{table()}
A call is refused if two instances died while they had it, the second one while it had no other
call: 502 (`call_breaks_engines`). One at which any instance merely fails gets what the last one
said, or 503 (`upstream_unreachable`) where it broke the connection.

The wait for a stream's next event ends after `stall_s`, that for an answer that comes whole after
`answer_s`. That does not condemn the instance: the call ends with 504 (`answer_timeout`), which
names the setting, and is not made again. A call that hangs where others go on is mostly noticed far
sooner, by the pace of the instance's other calls, and is answered by another instance. Clients have
whole events only, so an error event can always follow.
"""


if __name__ == "__main__":
    print(PAGE, end="")
