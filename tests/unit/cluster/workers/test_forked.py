"""Processes that begin as copies of another, each test in a process of its own: pytest's has
threads."""

import subprocess
import sys
import textwrap

PROGRAM = """
import asyncio, os, signal, socket, sys
from pathlib import Path
from kairos.cluster.workers.forked import fork

def open_files():
    # But that of the list itself.
    listed = sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    return [each for each in listed if Path(f"/proc/self/fd/{{each}}").exists()]

async def run():
{body}

asyncio.run(run())
"""


def run(body):
    """Return what a program printed to standard output and to standard error."""
    program = PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    "))
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout.split(), ran.stderr


def test_a_copy_ends_with_the_status_that_its_main_function_returns():
    said, _ = run("""
        for status in (0, 3):
            print(await fork(lambda: status, "copy", ()).wait())
    """)
    assert said == ["0", "3"]


def test_what_a_copy_raises_is_shown_and_its_status_is_1():
    said, shown = run("""
        def fail():
            raise ValueError("a cause")

        print(await fork(fail, "copy", ()).wait())
    """)
    assert said == ["1"]
    assert "ValueError: a cause" in shown


def test_a_copy_has_no_open_file_but_those_that_it_is_given():
    said, _ = run("""
        ours, theirs = socket.socketpair()
        others = socket.socketpair()  # which stay with the parent

        def tell():
            theirs.send(repr(open_files()).encode())
            return 0

        await fork(tell, "copy", [theirs.fileno()]).wait()
        print(ours.recv(1000).decode() == repr([0, 1, 2, theirs.fileno()]))
    """)
    assert said == ["True"]


def test_a_signal_to_a_copy_is_none_to_its_parent():
    """Signals of the parent's loop arrive by a socket that the fork has inherited."""
    said, _ = run("""
        heard = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.append, "SIGTERM")
        ours, theirs = socket.socketpair()

        def wait():
            theirs.send(b"ready")
            signal.pause()
            return 0

        copy = fork(wait, "copy", [theirs.fileno()])
        ours.setblocking(False)
        await loop.sock_recv(ours, 100)
        copy.send_signal(signal.SIGTERM)
        print(await copy.wait(), heard)
        os.kill(os.getpid(), signal.SIGTERM)
        while not heard:
            await asyncio.sleep(0)
        print(*heard)
    """)
    assert said == ["-15", "[]", "SIGTERM"]


def test_an_interrupt_of_the_terminal_is_left_to_the_parent():
    said, _ = run("""
        def interrupted():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGHUP)
            return 7

        print(await fork(interrupted, "copy", ()).wait())
    """)
    assert said == ["7"]


def test_a_copy_can_run_a_loop_of_its_own():
    said, _ = run("""
        import uvloop

        def loop():
            async def answer():
                await asyncio.sleep(0)
                return 5

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(answer())

        print(*[await each.wait() for each in [fork(loop, "copy", ()) for _ in range(3)]])
    """)
    assert said == ["5", "5", "5"]


def test_nothing_that_the_parent_left_undone_is_done_by_a_copy():
    """Objects of the parent's would close files that the copy has opened since."""
    said, _ = run("""
        import gc

        class Left:
            def __del__(self):
                print("finalized")

        kept = [Left()]
        kept.append(kept)

        def collect():
            gc.unfreeze()
            gc.collect()
            return 0

        await fork(collect, "copy", ()).wait()
        print("ended")
        sys.stdout.flush()
        os._exit(0)
    """)
    assert said == ["ended"]


def test_a_copy_has_its_own_name_and_an_empty_standard_input():
    said, _ = run("""
        def tell():
            print(Path("/proc/self/comm").read_text().strip(), len(sys.stdin.read()))
            return 0

        await fork(tell, "kairos worker 1", ()).wait()
    """)
    assert said == ["kairos", "worker", "1", "0"]
