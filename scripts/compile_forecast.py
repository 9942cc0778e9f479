"""Compiles `kairos/dispatcher/forecast.c`, where there is a C compiler: `python
scripts/compile_forecast.py`. The build of Kairos does the same (`hatch_build.py`).

Without a compiler nothing fails: numpy does the same arithmetic, more slowly. The library needs
nothing of Python, so one serves every version of it on a platform. Its name has a hash of the
source, so one of other source is never loaded.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path("kairos/dispatcher/forecast.c")
# No contraction: a fused multiply-add would round otherwise than on machines without one.
FLAGS = ("-std=c99", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-ffp-contract=off")


def compile_forecast(root: Path) -> Path | None:
    """Where the library is; None, and the reason on stderr, if there is none. Those of earlier
    source are removed."""
    source = root / SOURCE
    for old in source.parent.glob("forecast-*.so"):
        old.unlink()
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        _say("there is no C compiler ('cc'), so numpy does its work, more slowly")
        return None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library = source.with_name(f"forecast-{digest}.so")
    command = [compiler, *FLAGS, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(  # noqa: S603  (the compiler of whoever installs)
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        _say(f"it was not compiled, so numpy does its work, more slowly:\n{done.stderr}")
        return None
    return library


def _say(what: str) -> None:
    print(f"{SOURCE}: {what}", file=sys.stderr)


if __name__ == "__main__":
    compile_forecast(Path(__file__).parents[1])
