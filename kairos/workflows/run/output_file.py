"""Files that appear whole, and never overwrite another file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from kairos.core import SetupError


def check_new(path: Path) -> None:
    """Raise SetupError if something exists at the path, or no file can be made there."""
    if os.path.lexists(path):
        raise SetupError(f"{path} exists: name another --out, or move it away")
    if not path.parent.is_dir():
        raise SetupError(f"there is no directory {path.parent}: make it, or name another --out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SetupError(f"no file can be made in {path.parent}: permission denied")


@contextmanager
def new_file(path: Path, part_of: str) -> Iterator[BufferedWriter]:
    """Yield a file that appears at `path`, whole and on disk, when the block ends without error.

    Args:
        path: of the file.
        part_of: names the temporary file, so that a retry replaces what a crash left. No other
            process may write with the same name at the same time.

    Raises:
        SetupError: another file has appeared there. The written file is left next to it.
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
    """Move the file by a hard link: unlike a rename, it never replaces another file."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise SetupError(f"{path} was created by another process; the table is in {part}") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        check_new(path)  # on a file system without links
        part.rename(path)
    part.unlink(missing_ok=True)
