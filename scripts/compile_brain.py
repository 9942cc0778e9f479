"""Compiles the brain to C by mypyc: `make compile`, or `python -m scripts.compile_brain`.

It needs a C compiler and the headers of Python. What comes of it, and when it is used, stands in
`kairos/host/compiled_brain.py`. Nothing is done where it is there already, of the same sources.
"""

import fcntl
import io
import json
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

import kairos
from kairos.host.compiled_brain import FOLDER, INTERPRETED, MANIFEST, digest, files

PACKAGE = FOLDER.parent
LOCK = PACKAGE / ".compiled-lock"
GROUP = "kairos_brain"
MODULES = (
    "core/admission.py",
    "core/agent_key.py",
    "core/balancer.py",
    "core/call_tracker.py",
    "core/dispatching.py",
    "core/open_work.py",
    "core/orchestrator/kept_workflows.py",
    "core/orchestrator/orchestrator.py",
    "core/orchestrator/workflow.py",
    "core/runtime.py",
    "core/shared_lru.py",
    "core/workflow_tracker.py",
    "simulate/clock.py",
    "simulate/engines.py",
)
ROOMS = ("core/dispatcher", "core/faults", "core/scheduler", "simulate/engine")
# mypyc makes no Struct and no exception; and what calls C by ctypes, or reads files, gains nothing.
NOT_COMPILED = frozenset(
    {
        "core/dispatcher/native.py",
        "core/faults/stalls.py",
        "simulate/engine/sequence.py",
        "simulate/engine/fitting.py",
    }
)
# No contraction: a fused multiply-add would round otherwise than Python does.
FLAGS = "-ffp-contract=off"


def modules() -> list[str]:
    """Paths relative to the package. Raises SystemExit: one of them cannot be compiled."""
    found = list(MODULES)
    for room in ROOMS:
        found += sorted(f"{room}/{each.name}" for each in (PACKAGE / room).glob("*.py"))
    found = [each for each in found if not each.endswith("__init__.py")]
    for each in sorted(set(found) - NOT_COMPILED):
        for line in (PACKAGE / each).read_text().splitlines():
            if line.startswith("class ") and ("Struct" in line or "(KairosError" in line):
                sys.exit(
                    f"compile_brain: kairos/{each}: '{line}' cannot be compiled. Move it into a "
                    "module of its own, or name its module in NOT_COMPILED."
                )
    return [each for each in found if each not in NOT_COMPILED]


def sources(compiled: Sequence[str]) -> list[str]:
    """Those, and all of Kairos that they import: compiled code is by the types of these, too."""
    for each in compiled:
        import_module("kairos." + each.removesuffix(".py").replace("/", "."))
    modules_here = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
    inside = (Path(each) for each in modules_here if each is not None)
    return sorted(str(each.relative_to(PACKAGE)) for each in inside if each.is_relative_to(PACKAGE))


def compile_into(folder: Path, compiled: Sequence[str]) -> None:
    paths = [f"kairos/{each}" for each in compiled]
    made = folder / "made"
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            extensions = mypycify(paths, group_name=GROUP, target_dir=str(made / "c"))
    except SystemExit:
        sys.exit(f"compile_brain: what mypyc refuses:\n{said.getvalue()}")
    if "warning:" in said.getvalue():
        sys.exit(
            "compile_brain: this would do something else once compiled; docs/design/call-cost.md "
            f"says what to write instead ('The brain is compiled, too'):\n{said.getvalue()}"
        )
    command = build_ext(Distribution({"name": GROUP, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder), str(made / "objects")
    command.ensure_finalized()
    command.run()
    shutil.rmtree(made)


def check_tools() -> None:
    """Raises SystemExit: something is missing."""
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    if shutil.which(compiler) is None:
        sys.exit(f"compile_brain: there is no '{compiler}': 'apt-get install gcc', then again.")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        sys.exit(
            f"compile_brain: {headers} is missing: 'apt-get install python3-dev', or the headers "
            "of your Python, then again."
        )


def main() -> None:
    if kairos.is_compiled:  # once more, with the sources
        again = [sys.executable, "-m", "scripts.compile_brain"]
        os.execve(sys.executable, again, os.environ | {INTERPRETED: "1"})  # noqa: S606
    os.chdir(PACKAGE.parent)  # mypyc names modules by their paths
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another one's work may be all that is needed
        compile_all()


def compile_all() -> None:
    compiled = modules()
    read = sources(compiled)
    made_by = [version("mypy"), sys.version, FLAGS, *compiled]
    manifest = {"digest": digest(PACKAGE, read), "sources": read, "made_by": made_by}
    with suppress(OSError, ValueError):
        if json.loads((FOLDER / MANIFEST).read_bytes()) == manifest and files(FOLDER):
            return
    check_tools()
    print(f"compiling {len(compiled)} modules of the brain: a minute or two", flush=True)
    os.environ["CFLAGS"] = f"{os.environ.get('CFLAGS', '')} {FLAGS}"
    with tempfile.TemporaryDirectory(dir=PACKAGE, prefix=".compiled-") as scratch:
        made = Path(scratch) / "compiled"
        made.mkdir()
        compile_into(made, compiled)
        if digest(PACKAGE, read) != manifest["digest"]:
            sys.exit("compile_brain: a source has changed meanwhile: once more, please.")
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if FOLDER.exists():
            FOLDER.rename(Path(scratch) / "before")
        made.rename(FOLDER)


if __name__ == "__main__":
    main()
