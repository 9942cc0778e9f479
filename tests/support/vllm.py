"""Real vLLM instances for tests, and the processes that they are made of."""

import asyncio
import os
import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kairos.core import SetupError
from kairos.engines.vllm import installed_python
from tests.support.host.forked import FORKER
from tests.support.processes import Process

READY_S = 240
COUNT = 2
# A model of random weights would go on with spaces where JSON may have any.
COMPACT_JSON = '{"backend": "xgrammar", "disable_any_whitespace": true}'


def needs_vllm():
    """Without a vLLM: skip, in CI fail."""
    try:
        installed_python()
    except SetupError as error:
        (pytest.fail if "CI" in os.environ else pytest.skip)(str(error))


@contextmanager
def running(directory, *more):
    """The URLs of instances that end with this process, however that ends. `more`: options."""
    needs_vllm()
    options = ("--count", COUNT, "--port", 0, "--scheduling-policy", "priority")
    options += ("--structured-outputs-config", COMPACT_JSON, *more)
    # In which vLLM tells how it was started.
    environ = {"VLLM_SERVER_DEV_MODE": "1"}
    with Process(
        directory, "vllm", *options, module="scripts.vllm_engines", environ=environ
    ) as process:
        until = time.monotonic() + READY_S
        while "all are ready" not in process.said:
            if time.monotonic() > until or process.ended:
                pytest.fail(f"vLLM is not ready: {process.said}")
            time.sleep(0.2)
        yield re.findall(r"is ready at (\S+)", process.said)


def vllm_process(directory, number, *, port, model, max_num_seqs, scratch):
    """One instance on a core of its own, to be killed and started again.

    `number`: from 1; tells its core. `scratch`: a directory with a short name, for what it leaves
    behind when it is killed.
    """
    # Of the port it is told the first instance's.
    options = ["--number", number, "--port", port - number + 1]
    options += ["--model", model, "--max-num-seqs", max_num_seqs]
    return Process(
        directory,
        f"vllm-{number}",
        *options,
        module="kairos.engines.vllm",
        environ={"TMPDIR": scratch},
    )


def descendants(pid):
    """Return the processes that it and its descendants started.

    What a fork of a test has beside it (`forking`) is left out.
    """
    children, beside = {}, set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            begin, _, end = (directory / "stat").read_text().rpartition(")")
        except OSError:
            continue  # ended meanwhile
        status = end.split()
        if begin.endswith(f"({FORKER}"):
            beside.add(int(directory.name))
        children.setdefault(int(status[1]), []).append(int(directory.name))
    found, new = set(), [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found.update(new)
    return found - beside


def named(name, pids):
    """The one among them that calls itself so, if any does yet."""
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().strip("\0") == name:
                return pid
    return None


async def until_gone(pids, limit_s=60):
    """Ended, whoever has to collect their status."""
    async with asyncio.timeout(limit_s):
        while any(_runs(pid) for pid in pids):
            await asyncio.sleep(0.05)  # the kernel has no event for this


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
