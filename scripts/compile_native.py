"""Compiles what of Kairos is plain C, where there is a C compiler: `python
scripts/compile_native.py`. The build of Kairos does the same (`hatch_build.py`).

Without a compiler nothing fails: Python and numpy do the same, more slowly. The libraries need
nothing of Python, so one serves every version of it on a platform. Their names have a hash of the
source, so one of other source is never loaded (`kairos/core/native_library.py`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = (
    Path("kairos/core/dispatcher/forecast.c"),
    Path("kairos/request/reading.c"),
    Path("kairos/workflows/compile/placement_moves.c"),
)
# No contraction: a fused multiply-add would round otherwise than on machines without one.
FLAGS = ("-std=c99", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-ffp-contract=off")


def compile_native(root: Path) -> list[Path]:
    """Where the libraries are; the reason on stderr where one is missing. Those of earlier source
    are removed."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    compiled = [_compile(root, source, compiler) for source in SOURCES]
    return [library for library in compiled if library is not None]


def _compile(root: Path, relative: Path, compiler: str | None) -> Path | None:
    source = root / relative
    for old in source.parent.glob(f"{source.stem}-*.so"):
        old.unlink()
    if compiler is None:
        _say(relative, "there is no C compiler ('cc'), so Python does its work, more slowly")
        return None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library = source.with_name(f"{source.stem}-{digest}.so")
    command = [compiler, *FLAGS, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(  # noqa: S603  (the compiler of whoever installs)
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        _say(relative, f"it was not compiled, so Python does its work, more slowly:\n{done.stderr}")
        return None
    return library


def _say(source: Path, what: str) -> None:
    print(f"{source}: {what}", file=sys.stderr)


if __name__ == "__main__":
    compile_native(Path(__file__).parents[1])
