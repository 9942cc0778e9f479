"""What the log's files no longer tell once the oldest are gone: the limits of its instances.

Instances are told when they join, which may be weeks ago. Who measures calls by the log
(`kairos usage`) needs them.
"""

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from kairos.core.errors import SetupError
from kairos.core.model import Instance
from kairos.host.files import atomic_write

logger = logging.getLogger(__name__)

_FILE = "instances.json"
_MOST = 4_096  # instances; beyond, those go that were told of longest ago


class InstanceLimits:
    """The last that was told of each instance, and, once it is needed, a file of it beside the
    log."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._known = {each.id: each for each in read_limits(directory)}
        self.is_needed = bool(self._known)  # files of the log are gone
        self._changed = self._failing = False

    def note(self, instance: Instance) -> None:
        self._known.pop(instance.id, None)
        self._known[instance.id] = instance
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        self._changed = True

    def write(self) -> None:
        """Nothing, where nothing is new or the log is whole. A file that cannot be written is tried
        again the next time."""
        if not self.is_needed or not self._changed:
            return
        try:
            with atomic_write(self._path, mode=0o600) as file:
                file.write(msgspec.json.encode(list(self._known.values())))
        except SetupError as error:
            if not self._failing:
                logger.warning("the limits of instances are not kept: %s", error)
            self._failing = True
        else:
            self._changed = self._failing = False


def read_limits(directory: Path) -> list[Instance]:
    """Of all instances that are kept beside a log; none, where the log is whole or the file is
    damaged."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=list[Instance])
    return []
