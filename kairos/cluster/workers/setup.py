"""Messages between the supervisor and its children."""

from pathlib import Path

import msgspec

from kairos.settings import Settings

FACTS, ASKED = "facts.sock", "asked.sock"


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
    """Changed settings, after a reload."""

    settings: Settings


READY = b"ready"  # sent by a child once it serves
