"""TLS context that is recreated when its files change.

The files are checked on new connections, at most once a second: connections after a change get the
new certificate, and an idle process does nothing. Open connections are not affected.
"""

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from kairos.core import SetupError
from kairos.settings import TlsFiles, certificate_concern

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the files; each takes some microseconds

_Stamp = tuple[int, int, int] | None  # None: there is no such file


class FreshContext:
    """Current context of one port, or of the connections to one engine."""

    def __init__(
        self,
        name: str,
        files: TlsFiles,
        make: Callable[[TlsFiles], ssl.SSLContext],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it. `name` appears in the log; for `make` see `settings/tls.py`.

        Raises SetupError: A file cannot be used.
        """
        self._name, self._files, self._make, self._now_s = name, files, make, now_s
        self._stamps = _stamps(files)
        self._context = make(files)
        self._looked_s = now_s()
        self._tell()

    def __call__(self) -> ssl.SSLContext:
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if _stamps(self._files) != self._stamps:
                self.use_files(self._files)
        return self._context

    def use_files(self, files: TlsFiles) -> None:
        """Use other files, and read them at once.

        If that fails, nothing changes, and the log says why.
        """
        self._files, self._stamps = files, _stamps(files)
        try:
            self._context = self._make(files)
        except SetupError as error:
            said = "%s: TLS keeps the last valid files: %s"
            logger.error(said, self._name, error)  # noqa: TRY400 - it says all
        else:
            paths = ", ".join(map(str, files.paths))
            logger.info("%s: TLS uses what was read of %s", self._name, paths)
            self._tell()

    def _tell(self) -> None:
        if (said := certificate_concern(self._files)) is not None:
            logger.warning("%s: %s; peers that check it will not connect", self._name, said)


def _stamps(files: TlsFiles) -> tuple[_Stamp, ...]:
    return tuple(_stamp(each) for each in files.paths)


def _stamp(path: Path) -> _Stamp:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ino, told.st_size
