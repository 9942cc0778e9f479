"""Fuzz the C sources under AddressSanitizer and UBSan: `python -m tests.fuzz.sanitized SECONDS`.

A copy of the repository gets its libraries from a compiler that checks each access and each
operation. Then the tests that compare C with Python run there on freshly drawn examples, again and
again, through the interface that Python has: `read_body(bytes)`, `choose(...)`. A rewrite in
another language keeps them. Needs gcc and its libasan.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/fuzz/test_corpus.py",
    "tests/unit/request/test_shape.py",
    "tests/unit/request/test_large_body.py",
    "tests/unit/request/identity",
    "tests/property/core/test_compiled_choice.py",
    "tests/property/core/test_prefix_columns.py",
    "tests/unit/workflows/compile/test_placement.py",
)
_COMPILER = """#!/bin/sh
exec gcc -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g "$@"
"""


def main() -> None:
    ends_s = time.monotonic() + int(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="kairos-sanitized-") as scratch:
        copy = Path(scratch)
        _copy(copy)
        _compile(copy)
        rounds = 0
        while rounds == 0 or time.monotonic() < ends_s:
            _run(copy)
            rounds += 1
    print(f"{rounds} rounds of {len(TESTS)} files of tests: no access or operation was wrong")


def _copy(copy: Path) -> None:
    """Copy what git knows; so neither libraries nor a compiled brain."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name, follow_symlinks=False)


def _compile(copy: Path) -> None:
    compiler = copy / "sanitizing-cc"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    command = [sys.executable, "scripts/compile_native.py"]
    subprocess.run(command, cwd=copy, env={**os.environ, "CC": str(compiler)}, check=True)
    libraries, sources = (len(list(copy.glob(f"kairos/**/*.{each}"))) for each in ("so", "c"))
    assert libraries == sources, f"{libraries} of {sources} sources were compiled"


def _run(copy: Path) -> None:
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environ = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little of what it has at its end
        "KAIROS_EXAMPLES": "random",
        "CI": "1",  # the libraries must be there
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    if subprocess.run(command, cwd=copy, env=environ, check=False).returncode:
        sys.exit("the last lines say what was wrong, and where")


if __name__ == "__main__":
    main()
