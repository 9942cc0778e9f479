"""A file that appears whole, under a name that nothing else has."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from kairos.core.errors import SetupError


def check_new(path: Path) -> None:
    """Raises SetupError: something is there, or no file can be made there."""
    if os.path.lexists(path):
        raise SetupError(f"{path} exists: name another --out, or move it away")
    if not path.parent.is_dir():
        raise SetupError(f"there is no directory {path.parent}: make it, or name another --out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SetupError(f"no file can be made in {path.parent}: permission denied")


@contextmanager
def new_file(path: Path, part_of: str) -> Iterator[BufferedWriter]:
    """It stands at `path`, whole and on the disk, once the block ends; if it raises, it does not.

    Args:
        part_of: names the file until then, so that who tries again takes the place of what a crash
            left. Nobody else may write under the same name at the same time.

    Raises:
        SetupError: something came to be there meanwhile. What was written is left beside it.
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{part_of}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _put(part, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _put(part: Path, path: Path) -> None:
    """A link, unlike a renaming, never takes the place of a file."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise SetupError(f"{path} has come to exist meanwhile; the table is in {part}") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        check_new(path)  # where there are no links
        part.rename(path)
    part.unlink(missing_ok=True)
