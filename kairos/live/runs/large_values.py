"""Values that are too large for a message: files in a directory that all hosts of a run see, each
named by what it holds."""

import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from kairos.errors import SetupError
from kairos.workload.files import atomic_write

MESSAGE_VALUE_BYTES = 256 << 10  # of a value that goes into a message itself
_NAME = re.compile(r"[0-9a-f]{40}")


class LargeValues:
    """Those of one run."""

    def __init__(self, directory: Path | None, run_id: str) -> None:
        """`directory`: None where there is none."""
        self._directory = None if directory is None else directory / run_id

    def check_place(self, size_bytes: int) -> Path:
        """Where such values go. Raises SetupError: there is no directory."""
        if self._directory is None:
            raise SetupError(
                f"a value of {size_bytes} bytes is too large for the bus: name a directory that "
                "all hosts see with --values, and resume the run"
            )
        return self._directory

    def keep(self, value: bytes) -> str:
        """The name by which it is found from now on.

        Raises:
            SetupError: there is no directory, or it takes nothing.
        """
        directory = self.check_place(len(value))
        path = directory / _name_of(value)
        if not path.exists():
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                with atomic_write(path, mode=0o600) as file:
                    file.write(value)
            except OSError as error:
                raise SetupError(f"{path} cannot be written: {error.strerror}") from None
        return path.name

    def forget(self, oldest_s: float | None = None) -> None:
        """Remove them: nobody will go on with the run. `oldest_s`: but not where one is younger,
        in seconds since the Unix epoch: another host may go on with it."""
        if self._directory is None:
            return
        with suppress(OSError):  # there is none, or it went meanwhile
            files = [each for each in self._directory.iterdir() if _NAME.fullmatch(each.name)]
            if oldest_s is not None and any(each.stat().st_mtime > oldest_s for each in files):
                return
            for each in files:
                each.unlink(missing_ok=True)
            self._directory.rmdir()

    def find(self, name: str) -> bytes:
        """Raises SetupError: it is not there."""
        if self._directory is None:
            raise SetupError(
                "values of this run are in a directory that all hosts see: name it with --values"
            )
        path = self._directory / name
        try:
            value = path.read_bytes() if _NAME.fullmatch(name) else b""
        except OSError as error:
            raise SetupError(
                f"{path} cannot be read ({error.strerror}): does this host see the same --values?"
            ) from None
        if _name_of(value) != name:
            raise SetupError(f"{path} does not hold what its name says: it was changed, or is torn")
        return value


def _name_of(value: bytes) -> str:
    return blake2b(value, digest_size=20).hexdigest()
