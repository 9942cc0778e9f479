import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from kairos.host import DEVNULL, PIPE, STDOUT, start_child

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=LOOPS)
def run(request):
    def runs(coroutine):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(coroutine, 60))

    return runs


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["true"], 0, b""),
        (["false"], 1, b""),
        (["sh", "-c", "exit 7"], 7, b""),
        (["sh", "-c", "kill -9 $$"], -signal.SIGKILL, b""),
        (["echo", "a b", "$HOME"], 0, b"a b $HOME\n"),
        (["sh", "-c", "echo here; echo there >&2"], 0, b"here\nthere\n"),
        (["cat"], 0, b"from outside"),
        (["head", "-c", "3000000", "/dev/zero"], 0, bytes(3_000_000)),
    ],
)
def test_a_program_runs_to_its_end(command, status, said, run):
    async def ask():
        child = await start_child(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        got, _ = await child.communicate(b"from outside" if command == ["cat"] else None)
        return child.returncode, got

    assert run(ask()) == (status, said)


def test_no_python_runs_between_fork_and_exec():
    program = """
import asyncio, os, uvloop
from kairos.host.child_process import PIPE, start_child
os.register_at_fork(after_in_child=lambda: os.write(1, b"python"))
async def main():
    child = await start_child("echo", "program", stdout=PIPE)
    print((await child.communicate())[0].decode().strip())
uvloop.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"program\n"


def test_a_program_that_is_not_there_is_said_at_once(run):
    async def ask():
        await start_child("/no/such/program", stdout=PIPE)

    before = open_files()
    with pytest.raises(FileNotFoundError):
        run(ask())
    assert open_files() <= before


def test_a_program_that_is_killed_has_ended_and_leaves_nothing_open(run):
    async def ask():
        child = await start_child("sleep", "600", stdin=DEVNULL, stdout=PIPE)
        assert child.returncode is None
        child.kill()
        return await child.wait()

    before = open_files()
    assert [run(ask()) for _ in range(5)] == [-signal.SIGKILL] * 5
    assert open_files() <= before


def test_without_a_descriptor_of_its_end_a_thread_waits_for_it(run, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")

    async def ask():
        child = await start_child("sh", "-c", "read line; exit 3", stdin=PIPE)
        child.stdin.close()
        return await child.wait()

    assert run(ask()) == 3
