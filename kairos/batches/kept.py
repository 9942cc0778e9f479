"""Directory of batches: the database, the files, and a lock for the driving process."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kairos.batches.batch_store import BatchStore
from kairos.batches.database import BatchDatabase
from kairos.batches.file_store import FileStore
from kairos.core import SetupError
from kairos.settings import BatchSettings


class KeptBatches:
    """Directory for its owner only. Several processes may use it; one of them drives."""

    def __init__(self, settings: BatchSettings) -> None:
        """Raises SetupError: the directory cannot hold batches."""
        root, self.limits = Path(settings.directory), settings
        files = root / "files"
        self.database_path, self._lock = root / "batches.sqlite", root / "lock"
        try:
            for path in (root, files):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = BatchDatabase(self.database_path)
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"batches.directory {root} cannot hold batches: {error}") from None
        self.files = FileStore(self._database, files, settings)
        self.batches = BatchStore(self._database, settings)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def driving(self) -> Iterator[bool]:
        """Yield whether this process drives the batches during the block; only one process does.

        The lock file has the process's id; the lock ends with the process.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                yield True
        finally:
            os.close(descriptor)
