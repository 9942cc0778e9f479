"""Plain C that was compiled as Kairos was installed (`scripts/compile_native.py`), by ctypes.

The library that is loaded is that of the very source beside it: its name has a hash of it. Ours.
"""

import ctypes
import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any


def load(package: str, name: str, kind: type[ctypes.CDLL]) -> ctypes.CDLL | None:
    """Of the source `name`.c in a package; None: it was not compiled. `kind`: whether other threads
    run while it works (`CDLL`), or not (`PyDLL`), which takes less where that is short."""
    folder = files(package)
    digest = hashlib.sha256(folder.joinpath(f"{name}.c").read_bytes()).hexdigest()[:12]
    try:
        return kind(str(folder.joinpath(f"{name}-{digest}.so")))
    except OSError:
        return None


def function(
    library: ctypes.CDLL, name: str, result: type | None, *arguments: type
) -> Callable[..., Any]:
    found = library[name]
    found.restype, found.argtypes = result, arguments
    return found
