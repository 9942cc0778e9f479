"""A TLS context that is made anew when its files change.

They are looked at when somebody connects, once a second at most: what comes after a change has the
new certificate, whoever wrote it, and a process to which nobody connects does nothing. What is
connected goes on with what it began with.
"""

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from kairos.core.errors import SetupError
from kairos.settings.tls import TlsFiles, concern

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the files; each takes some microseconds

_Stamp = tuple[int, int, int] | None  # None: there is no such file


class FreshContext:
    """Of one port, or of connections to one engine."""

    def __init__(
        self,
        name: str,
        files: TlsFiles,
        make: Callable[[TlsFiles], ssl.SSLContext],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: whose, for the log; `make`: see `tls_settings.py`.

        Raises:
            SetupError: a file cannot be used.
        """
        self._name, self._files, self._make, self._now_s = name, files, make, now_s
        self._stamps = _stamps(files)
        self._context = make(files)
        self._looked_s = now_s()
        self._tell()

    def __call__(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if _stamps(self._files) != self._stamps:
                self.use(self._files)
        return self._context

    def use(self, files: TlsFiles) -> None:
        """These from now on, read at once. If they cannot be used, all stays as it was, and the log
        says why."""
        self._files, self._stamps = files, _stamps(files)
        try:
            self._context = self._make(files)
        except SetupError as error:
            said = "%s: TLS goes on with its files as they were before: %s"
            logger.error(said, self._name, error)  # noqa: TRY400 - it says all
        else:
            paths = ", ".join(map(str, files.paths))
            logger.info("%s: TLS uses what was read of %s", self._name, paths)
            self._tell()

    def _tell(self) -> None:
        if (said := concern(self._files)) is not None:
            logger.warning("%s: %s; who checks it does not connect", self._name, said)


def _stamps(files: TlsFiles) -> tuple[_Stamp, ...]:
    return tuple(_stamp(each) for each in files.paths)


def _stamp(path: Path) -> _Stamp:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ino, told.st_size
