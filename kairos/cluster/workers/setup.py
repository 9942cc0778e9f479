"""What the supervisor and its children tell each other."""

from pathlib import Path

import msgspec

from kairos.settings.config import Settings

FACTS, ASKED = "facts.sock", "asked.sock"


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first thing that a child is told. File descriptors are inherited."""

    name: str
    settings: Settings
    directory: str  # private, for files and sockets
    sockets: dict[str, int]  # to listen on, by what for
    journal: tuple[int, int] | None = None  # None: it is a worker, not the decider

    def path(self, name: str) -> Path:
        return Path(self.directory, name)


class Changed(msgspec.Struct, frozen=True, tag=True):
    """The settings were read again."""

    settings: Settings


READY = b"ready"  # what a child says once it serves
