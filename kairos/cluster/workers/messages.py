"""Messages between a worker and the decider over a Unix socket.

A worker sends `Hello`, then numbered `Fact`s in order; the decider's `OrderFrame`s acknowledge
them. After a disconnect the worker sends `Hello` again, the unacknowledged facts, and `InFlight`.

Both ends are the same program, and the socket is in a directory that only its user can enter: so
messages are decoded by type, but their numbers are not validated, unlike those on Kafka.

`Setup`, `Changed` and `READY` are between the supervisor and its children.
"""

from pathlib import Path

import msgspec

from kairos.cluster.decisions.messages import Declined
from kairos.core import Dispatch, Event, InstanceJoined, InstanceLeft, InstanceStatus, Refuse
from kairos.settings import EngineSettings, Settings

FACTS, ASKED = "facts.sock", "asked.sock"
READY = b"ready"  # sent by a child once it serves
AT_ONCE = 1_000  # facts or orders of one frame


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message to a child. File descriptors are inherited."""

    name: str
    settings: Settings
    directory: str  # private, for files and sockets
    sockets: dict[str, int]  # to listen on, by what for
    journal: tuple[int, int] | None = None  # None: it is a worker, not the decider

    def path(self, name: str) -> Path:
        return Path(self.directory, name)


class Changed(msgspec.Struct, frozen=True, tag=True):
    settings: Settings


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a connection. The worker's name is unique and never reused."""

    worker: str


class Fact(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    number: int  # counts up
    event: Event
    turn: int = 0  # of a call that waits from then on


class InFlight(msgspec.Struct, frozen=True, tag=True):
    """All calls of the worker that have not ended, each with its turn."""

    turns: dict[str, int]


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """Report that an instance could not be reached."""

    instance_id: str
    cause: str
    refused: bool


class QuestionAnswered(msgspec.Struct, frozen=True, tag="Answered"):
    """Numbers of further calls answered with an error, by the error's code."""

    errors: dict[str, int]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Sign of life of a worker, once a second."""


FromWorker = Hello | Fact | InFlight | Trouble | QuestionAnswered | Beat


class Engines(msgspec.Struct, frozen=True):
    """All instances with their addresses; some of them may be draining."""

    all: tuple[EngineSettings, ...] = ()
    draining: tuple[str, ...] = ()


OfInstance = InstanceJoined | InstanceLeft | InstanceStatus


class OrderFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """Orders for a worker, to be executed in this order."""

    acknowledged: int = 0  # the number of the last fact in the journal
    commands: tuple[Dispatch | Refuse | Declined, ...] = ()
    turns: tuple[int, ...] = ()  # of each command: the one that was decided on
    engines: Engines | None = None  # None: as before
    news: tuple[OfInstance, ...] = ()  # of instances, since the last frame
