"""What a worker and the decider tell each other over a Unix socket.

A worker says `Hello`, then `Fact`s, in order and numbered; the decider's `OrderFrame`s acknowledge
them. After a break the worker says `Hello` again, the facts that were not acknowledged, and
`InFlight`.

Both ends are the same program, and the socket lies in a directory that only its user can enter: so
what is told is decoded by type, but its numbers are not checked again, as a pool's on Kafka are.
"""

import msgspec

from kairos.cluster.pool.messages import Declined
from kairos.core.events import Dispatch, Event, InstanceJoined, InstanceLeft, InstanceStatus, Refuse
from kairos.settings.engines import EngineSettings

AT_ONCE = 1_000  # facts or orders of one frame


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a connection. The name is of this process and no other, ever."""

    worker: str


class Fact(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What happened to a call of the worker."""

    number: int  # counts up
    event: Event
    turn: int = 0  # of a call that waits from then on


class InFlight(msgspec.Struct, frozen=True, tag=True):
    """All calls of the worker that have not ended, each with its turn."""

    turns: dict[str, int]


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """An instance could not be reached."""

    instance_id: str
    cause: str
    refused: bool


class QuestionAnswered(msgspec.Struct, frozen=True, tag="Answered"):
    """How many more calls were answered with each error, by its code."""

    errors: dict[str, int]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The worker is still there; once a second."""


FromWorker = Hello | Fact | InFlight | Trouble | QuestionAnswered | Beat


class Engines(msgspec.Struct, frozen=True):
    """All instances, with where each is; some of them may drain."""

    all: tuple[EngineSettings, ...] = ()
    draining: tuple[str, ...] = ()


OfInstance = InstanceJoined | InstanceLeft | InstanceStatus


class OrderFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker is to do, in this order."""

    acknowledged: int = 0  # the number of the last fact that is safe
    commands: tuple[Dispatch | Refuse | Declined, ...] = ()
    turns: tuple[int, ...] = ()  # of each command: the one that was decided on
    engines: Engines | None = None  # None: as before
    news: tuple[OfInstance, ...] = ()  # of instances, since the last frame
