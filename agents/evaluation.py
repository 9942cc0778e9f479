"""Runs a model's code against tests, as code of an enemy.

What `sandbox.py` gives up before the code runs: time, CPU, memory, file size, open files, new
processes, root, the network, all system calls that Python does not need to compute, and all files
but Python's own and an empty directory. `check_layers` refuses a system that cannot do that.
What remains: code and tests share one interpreter, so code that looks for the proof of passing (the
token in the runner's memory) or answers `True` to every comparison can cheat its own tests. It
cannot pass by leaving early, and it gains nothing but a wrong verdict on itself.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import IO

import msgspec

from agents.sandbox import TIME_UP
from kairos.core import InvalidRequest, SetupError
from kairos.host import child_process

MIB = 1 << 20

_SANDBOX = Path(__file__).with_name("sandbox.py")
_SOURCE_BYTES = 256 * 1024
_FILE_BYTES = MIB  # of any one file; the output is one
_SCRATCH_BYTES = 4 * MIB
_VERDICT_BYTES = 8192


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the code. `reason` says why it did not pass."""

    passed: bool
    reason: str
    output: str
    missing_layers: tuple[str, ...]  # of protection, that this system could not give


class _Verdict(msgspec.Struct):
    """A line from the sandbox, or from whoever found the pipe."""

    missing_layers: tuple[str, ...] = ("unknown",)
    token: str | None = None
    error: str | None = None


# What no system may lack. Without namespaces the others keep the code from all that is outside.
NEEDED = ("resource limits", "no new privileges", "Landlock", "nobody", "seccomp")


async def check_layers() -> None:
    """Check that generated code can be held here.

    Raises:
        SetupError: A layer is missing without which it reaches files or processes outside.
    """
    missing = (await evaluate("", "", timeout_s=30)).missing_layers
    if absent := [each for each in missing if each.startswith((*NEEDED, "unknown"))]:
        raise SetupError(
            f"generated code cannot be run safely here: {'; '.join(absent)}. Landlock needs Linux "
            "5.13 or later, seccomp the library libseccomp2, and a container must not forbid either"
        )


async def evaluate(
    code: str,
    tests: str,
    *,
    timeout_s: float = 5,
    memory_bytes: int = 512 * MIB,
    output_bytes: int = 8192,
    processes: int = 0,
) -> Evaluation:
    """Run `code`, then `tests` in the same module; passed if both run to their ends.

    `processes` is how many processes and threads the code may start. Of what it prints the first
    `output_bytes` are kept.

    Raises:
        InvalidRequest: code and tests are over 256 KiB.
    """
    if len(code.encode()) + len(tests.encode()) > _SOURCE_BYTES:
        raise InvalidRequest(f"code and tests are over {_SOURCE_BYTES} bytes; send less")
    token = secrets.token_hex(16)
    task = {
        "code": code,
        "tests": tests,
        "token": token,
        "timeout_s": timeout_s,
        "scratch_bytes": _SCRATCH_BYTES,
        "limits": {
            "CPU": ceil(timeout_s) + 1,
            "AS": memory_bytes,
            "FSIZE": _FILE_BYTES,
            "NPROC": processes,
        },
    }
    with _directory() as directory, tempfile.TemporaryFile() as output:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(msgspec.json.encode(task))
            stdin.seek(0)
            status, lines = await _run(stdin, output, directory)
        output.seek(0)
        said = output.read(output_bytes).decode(errors="replace")
    layers, verdict = (*map(_parse, lines), _Verdict(), _Verdict())[:2]
    passed = status == 0 and verdict.token == token
    return Evaluation(
        passed=passed,
        reason="passed" if passed else verdict.error or _reason(status, timeout_s),
        output=said,
        missing_layers=layers.missing_layers,
    )


async def _run(stdin: IO[bytes], output: IO[bytes], directory: str) -> tuple[int, list[bytes]]:
    """Run the sandbox to its end, which its own timer makes sure of."""
    verdict_fd, its_end = os.pipe()
    try:
        process = await child_process.start_child(
            *(sys.executable, "-I", "-S", "-u", str(_SANDBOX), str(its_end)),
            stdin=stdin,
            stdout=output,
            stderr=output,
            env={},
            cwd=directory,
            start_new_session=True,
            pass_fds=(its_end,),
        )
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            process.terminate()  # it kills what it started, wherever that has gone
            await process.wait()
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        os.set_blocking(verdict_fd, False)
        with suppress(BlockingIOError):
            return status, os.read(verdict_fd, _VERDICT_BYTES).split(b"\n")
        return status, []
    finally:
        os.close(its_end)
        os.close(verdict_fd)


@contextmanager
def _directory() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="kairos-evaluation-")
    try:
        yield path
    finally:
        # Where neither a scratch file system nor Landlock was to be had, the code may have left a
        # tree too deep to remove; a leftover is better than an evaluation that fails on it.
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _parse(line: bytes) -> _Verdict:
    try:
        return msgspec.json.decode(line, type=_Verdict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Verdict()


def _reason(status: int, timeout_s: float) -> str:
    if status == TIME_UP:
        return f"the time limit of {timeout_s:g} s was reached"
    if status > 128:
        return f"it was killed by signal {status - 128}"
    return f"it ended with status {status} before its tests did"
