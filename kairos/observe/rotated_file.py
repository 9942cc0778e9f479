"""Bounded file of lines that several processes append to, with rotation."""

import fcntl
import os
import stat
from pathlib import Path

FILE_BYTES = 16 << 20
MAX_FILES = 16


class RotatedFile:
    """`PATH`, and the earlier files `PATH.1`, `PATH.2` and so on, readable only by their owner.

    The process that finds it full renames it, under a lock; the others notice at their next line
    that it is another file. Renaming by other programs (`logrotate`) is noticed in the same way.
    """

    def __init__(
        self, path: Path, *, file_bytes: int = FILE_BYTES, max_files: int = MAX_FILES
    ) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be appended to.
        """
        self._path, self._file_bytes, self._max_files = path, file_bytes, max_files
        self._file = self._open()

    def append(self, lines: bytes) -> None:
        """Append complete lines, which do not mix with lines of other processes.

        Raises:
            OSError: they are not written, or the last of them in part.
        """
        if not self._is_in_place():
            self._reopen()
        size = os.fstat(self._file).st_size
        if size and size + len(lines) > self._file_bytes:
            self._rotate()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is not a regular file")
        return file

    def _reopen(self) -> None:
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def _is_in_place(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file))

    def _rotate(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # until it is closed
        if self._is_in_place():
            for number in range(self._max_files - 2, 0, -1):
                if self._aside(number).exists():
                    self._aside(number).replace(self._aside(number + 1))
            self._path.replace(self._aside(1))
        self._reopen()

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
