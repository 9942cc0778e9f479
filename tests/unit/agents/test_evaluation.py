"""Code that a model wrote is an enemy's: here it is one, and gets nowhere."""

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from agents import evaluation as evaluation_module
from agents.evaluation import MIB, Evaluation, evaluate
from agents.sandbox import _Layers
from kairos.core import InvalidRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


async def run(code: str, tests: str = "", **limits) -> Evaluation:
    return await evaluate(code, tests, **{"timeout_s": 20, **limits})


def needs(evaluation: Evaluation, layer: str) -> None:
    for missing in evaluation.missing_layers:
        if missing.startswith(layer):
            pytest.skip(f"this system gives no {missing}")


@pytest.fixture
def open_directory():
    """A directory that anyone may write to, as far as its permissions go."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o777)
        yield Path(path)


@pytest.fixture
def mark():
    """A name that code can give its processes, unlike any other's."""
    return f"k{secrets.token_hex(6)}"


def name_itself(mark: str) -> str:
    return f"import ctypes, os, sys, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\n"


def processes_named(mark: str) -> int:
    found = 0
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += comm.read_text().strip() == mark
        except OSError:  # it ended meanwhile
            continue
    return found


async def test_code_that_passes_its_tests_passes():
    code = (
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: 'int'\ndef f(n): return P(n)"
    )
    evaluation = await run(code, "import statistics, decimal\nassert f(3) == P(3)")
    assert (evaluation.passed, evaluation.reason) == (True, "passed")


async def test_a_failed_assertion_is_named_with_its_line():
    evaluation = await run("def f(n):\n    return n", "assert f(1) == 1\nassert f(2) == 3, 'off'")
    assert not evaluation.passed
    assert evaluation.reason == "AssertionError: off in: assert f(2) == 3, 'off'"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(:", "SyntaxError"),
        ("raise ValueError('no')", "ValueError: no in: raise ValueError('no')"),
        ("import sys\ndef f(n): sys.exit(0)", "SystemExit: 0 in: assert f(1)"),
        ("def g(): pass", "NameError: name 'f' is not defined in: assert f(1)"),
    ],
)
async def test_code_that_cannot_run_fails_with_its_error(code, reason):
    evaluation = await run(code, "assert f(1)")
    assert not evaluation.passed
    assert evaluation.reason.startswith(reason)


async def test_what_the_code_prints_is_kept():
    assert (await run("print('here: é')")).output == "here: é\n"


FORGERY = """
import os
for fd in range(3, 300):
    try:
        os.write(fd, b'{"token": "0"}\\n')
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize(
    "leave",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV); os.abort()",
        "import os; os.execv('/bin/true', ['true'])",
        FORGERY,
    ],
)
async def test_code_that_leaves_before_its_tests_ran_has_not_passed(leave):
    assert not (await run(leave, "assert False")).passed


async def test_code_that_leaves_inside_its_tests_has_not_passed():
    evaluation = await run("import os\ndef f(): os._exit(0)", "f()")
    assert not evaluation.passed
    assert evaluation.reason == "it ended with status 0 before its tests did"


async def test_code_that_replaces_what_the_runner_uses_gets_no_token():
    steal = "import json, os\nsaid = []\nos.write = lambda fd, data: said.append(data)\n"
    steal += "json.dumps = lambda value: said.append(value) or '{}'\nos._exit = said.append\n"
    evaluation = await run(steal + "class R(BaseException): pass", "assert said == []")
    assert evaluation.passed


async def test_an_endless_loop_ends_at_the_time_limit():
    evaluation = await run("while True: pass", timeout_s=0.3)
    assert evaluation.reason == "the time limit of 0.3 s was reached"
    assert not evaluation.passed


async def test_sleeping_ends_at_the_time_limit():
    assert not (await run("import time; time.sleep(60)", timeout_s=0.3)).passed


async def test_a_process_cannot_leave_the_session_to_escape_its_end(mark):
    """Where no namespace ends with it, its group is killed."""
    for leave in ("os.setsid()", "os.setpgid(0, 0)"):
        evaluation = await run(name_itself(mark) + f"{leave}\ntime.sleep(60)")
        assert evaluation.reason.startswith("PermissionError")
        assert processes_named(mark) == 0


async def test_a_memory_bomb_fails_at_the_limit():
    evaluation = await run("x = bytearray(400 << 20)", memory_bytes=256 * MIB)
    assert evaluation.reason.startswith("MemoryError")


@pytest.mark.parametrize(
    "start", ["import os; os.fork()", "import threading; threading.Thread(target=print).start()"]
)
async def test_no_process_and_no_thread_can_be_started(start):
    evaluation = await run(start)
    refused = ("BlockingIOError", "PermissionError", "RuntimeError: can't start new thread")
    assert evaluation.reason.startswith(refused)


FORK_BOMB = """
def bomb():
    count = 0
    for _ in range(1000):
        try:
            if os.fork() == 0:
                time.sleep(60)
            count += 1
        except BlockingIOError:
            return count
"""


async def test_a_fork_bomb_is_bounded_and_none_of_it_remains(mark):
    tests = "n = bomb()\nprint(n)\nassert n <= 8"
    evaluation = await run(name_itself(mark) + FORK_BOMB, tests, processes=8)
    needs(evaluation, "nobody")
    assert evaluation.passed, evaluation
    # An ordinary user's other processes count, too, and may leave no room for any.
    fewest = 1 if os.geteuid() == 0 else 0
    assert fewest <= int(evaluation.output) <= 8
    needs(evaluation, "namespaces")
    assert processes_named(mark) == 0


async def test_a_child_does_not_survive_in_the_background(mark):
    daemon = """
there, here = os.pipe()
if os.fork() == 0:
    os.write(here, b"x")
    time.sleep(60)
assert os.read(there, 1) == b"x"
"""
    evaluation = await run(name_itself(mark) + daemon, processes=8)
    assert evaluation.passed, evaluation
    assert processes_named(mark) == 0


async def test_cancelling_the_evaluation_ends_the_code(mark):
    code = name_itself(mark) + "time.sleep(60)"
    task = asyncio.create_task(run(code, timeout_s=60))
    async with asyncio.timeout(60):
        while not processes_named(mark):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert processes_named(mark) == 0


async def test_a_huge_file_cannot_be_written():
    evaluation = await run("open('big', 'wb').write(bytes(2 << 20))")
    assert evaluation.reason.startswith("OSError: [Errno 27] File too large")


async def test_many_files_cannot_fill_the_disk():
    fill = "for n in range(60): open(str(n), 'wb').write(bytes(1 << 19))"
    evaluation = await run(fill)
    needs(evaluation, "scratch")
    assert evaluation.reason.startswith("OSError: [Errno 28] No space left")


async def test_the_code_gets_an_empty_directory_of_its_own_and_may_use_it():
    use = "import os\nassert os.listdir() == []\nopen('a', 'w').write('x')\nos.remove('a')"
    assert (await run(use)).passed


async def test_a_flood_of_output_is_cut():
    evaluation = await run("while True: print('x' * 1000)", output_bytes=100)
    assert evaluation.output == "x" * 100
    assert "File too large" in evaluation.reason


async def test_the_environment_and_those_of_other_processes_stay_unread(monkeypatch):
    monkeypatch.setenv("KAIROS_TEST_SECRET", "hush")
    look = """
import glob, os
seen = [repr(dict(os.environ))]
for pid in ["self", *map(str, range(1, 100_000, 1))]:
    try:
        seen.append(open(f"/proc/{pid}/environ").read())
    except OSError:
        pass
"""
    evaluation = await run(look, "assert not any('hush' in text for text in seen), seen")
    assert evaluation.passed, evaluation


async def test_the_standard_input_is_empty_even_from_its_start():
    """It is where the runner got the token from."""
    look = "import os, sys\nassert sys.stdin.read() == ''\nos.lseek(0, 0, 0)"
    assert (await run(look, "assert os.read(0, 9999) == b''")).passed


async def test_nothing_is_written_or_deleted_outside_and_no_directory_made(open_directory):
    file = open_directory / "file"
    file.write_text("mine")
    file.chmod(0o666)
    attack = f"""
import os, pathlib
file = pathlib.Path({str(file)!r})
done = []
for act in (
    lambda: (file.parent / "new").write_text("x"), lambda: file.write_text("x"), file.unlink,
    lambda: file.rename(file.parent / "moved"), lambda: os.truncate(file, 0),
    lambda: os.mkdir("here"), lambda: os.symlink(file, "link"), lambda: os.link(file, "hard"),
):
    try:
        done.append(act())
    except OSError:
        pass
"""
    evaluation = await run(attack, "assert not done, done")
    needs(evaluation, "Landlock")
    assert evaluation.passed, evaluation
    assert [p.name for p in open_directory.iterdir()] == ["file"]
    assert file.read_text() == "mine"


async def test_files_that_python_does_not_need_stay_unread(open_directory):
    (open_directory / "file").write_text("mine")
    evaluation = await run(f"open('{open_directory}/file')")
    needs(evaluation, "Landlock")
    assert evaluation.reason.startswith("PermissionError")


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_no_server_can_be_reached(family, open_directory):
    """A socket in the file system is one that neither an own network nor Landlock keeps away."""
    if family == "tcp":
        server = socket.create_server(("127.0.0.1", 0))
        kind, address = "AF_INET", server.getsockname()
    else:
        server = socket.socket(socket.AF_UNIX)
        kind, address = "AF_UNIX", str(open_directory / "s")
        server.bind(address)
        server.listen()
        Path(address).chmod(0o777)
    with server:
        connect = f"import socket\nsocket.socket(socket.{kind}).connect({address!r})"
        evaluation = await run(connect)
        needs(evaluation, "seccomp")
        assert evaluation.reason.startswith("PermissionError")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_the_code_has_no_privileges_left():
    look = """
import os
assert 0 not in (*os.getresuid(), *os.getresgid(), *os.getgroups())
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(39, 0, 0, 0, 0) == 1, "no new privileges"
header, data = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)()
assert libc.capget(header, data) == 0 and not any(data), list(data)
"""
    evaluation = await run(look)
    needs(evaluation, "nobody")
    assert evaluation.passed, evaluation


async def test_an_evaluation_leaves_nothing_in_the_temporary_directory(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await run("open('a', 'w').write('x')")
    assert list(tmp_path.iterdir()) == []


async def test_a_layer_that_fails_is_told_and_the_others_are_tried():
    def refused() -> None:
        raise PermissionError("not here")

    reached = []
    layers = _Layers()
    assert not layers.add("first", refused)
    assert layers.add("second", reached.append, 2)
    assert layers.missing == ["first (not here)"]
    assert reached == [2]


async def test_what_is_not_known_of_the_layers_does_not_look_like_all_of_them(monkeypatch):
    monkeypatch.setattr(evaluation_module, "_SANDBOX", Path("/nowhere.py"))
    evaluation = await run("")
    assert (evaluation.passed, evaluation.missing_layers) == (False, ("unknown",))


async def test_every_resource_has_a_limit():
    look = """
import resource as r
names = "CPU AS FSIZE NPROC NOFILE CORE".split()
limits = {name: r.getrlimit(getattr(r, "RLIMIT_" + name)) for name in names}
"""
    wanted = {"CPU": 4, "AS": 256 * MIB, "FSIZE": MIB, "NPROC": 0, "NOFILE": 64, "CORE": 0}
    tests = f"assert limits == { ({name: (n, n) for name, n in wanted.items()})!r}, limits"
    assert (await run(look, tests, timeout_s=3, memory_bytes=256 * MIB)).passed


async def test_sources_over_the_limit_are_refused():
    with pytest.raises(InvalidRequest, match="send less"):
        await run("#" * (256 * 1024 + 1))
