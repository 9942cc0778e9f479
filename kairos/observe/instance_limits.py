"""Limits of instances, stored next to the log for when its oldest files are deleted.

Instances are reported when they join, which may be weeks ago. `kairos usage`, which measures calls
from the log, needs their limits.
"""

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from kairos.core import Instance, SetupError
from kairos.host import atomic_write

logger = logging.getLogger(__name__)

_FILE = "instances.json"
_MOST = 4_096  # instances; beyond, the ones reported longest ago are dropped


class InstanceLimits:
    """Latest report of each instance, and, once it is needed, a file of these next to the log."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._known = {each.id: each for each in read_limits(directory)}
        self.is_needed = bool(self._known)  # whether files of the log were deleted
        self._changed = self._failing = False

    def record_limits(self, instance: Instance) -> None:
        self._known.pop(instance.id, None)
        self._known[instance.id] = instance
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        self._changed = True

    def write(self) -> None:
        """Write the file, if there is news and files of the log were deleted.

        A failed write is retried the next time.
        """
        if not self.is_needed or not self._changed:
            return
        try:
            with atomic_write(self._path, mode=0o600) as file:
                file.write(msgspec.json.encode(list(self._known.values())))
        except SetupError as error:
            if not self._failing:
                logger.warning("the limits of instances cannot be saved: %s", error)
            self._failing = True
        else:
            self._changed = self._failing = False


def read_limits(directory: Path) -> list[Instance]:
    """Return the stored limits; empty for a complete log or a damaged file."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=list[Instance])
    return []
