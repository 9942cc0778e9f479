"""Loader of C code that was compiled when Kairos was installed. Not in the paper.

See `scripts/compile_native.py`. The name of a library contains the hash of its source, so a library
only loads next to the exact source it was built from.
"""

import ctypes
import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any


def load_library(package: str, name: str, kind: type[ctypes.CDLL]) -> ctypes.CDLL | None:
    """Load the library of the source `name`.c in a package; None if it was not compiled.

    Args:
        package: the package with the source.
        name: name of the source.
        kind: `CDLL` releases the GIL during calls; `PyDLL` does not, which is faster for short
            calls.
    """
    folder = files(package)
    digest = hashlib.sha256(folder.joinpath(f"{name}.c").read_bytes()).hexdigest()[:12]
    try:
        return kind(str(folder.joinpath(f"{name}-{digest}.so")))
    except OSError:
        return None


def declare_function(
    library: ctypes.CDLL, name: str, result: type | None, *arguments: type
) -> Callable[..., Any]:
    found = library[name]
    found.restype, found.argtypes = result, arguments
    return found
