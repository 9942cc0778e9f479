"""Python modules as processes that begin where their imports have ended.

Nearly all that a command of Kairos costs a test is `import kairos`. One process (`forking`) has
imported that; each `Program` is a fork of it with its own arguments, environment, working directory
and standard streams: a real process, to be signalled, killed and waited for like any other. Only in
/proc does it have the command line and the environment of the process it was forked from.

A fork does not show that a command starts by itself: for each command a test starts one `fresh`, as
a Python of its own. So is what sets a variable that is read before Kairos is imported.
"""

import asyncio
import atexit
import inspect
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from kairos.host import child_process

LIMIT_S = 60
FORKER = "kairos-forker"  # the name of the process that makes what a fork starts
ROOT = Path(__file__).parents[3]
_start_child = child_process.start_child
_READ_AT_START = ("KAIROS_INTERPRETED", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON")


class Program(subprocess.Popen):
    """`python -m MODULE ARGUMENT...`; options as of `subprocess.Popen`, and `open_files`:
    the soft limit on open files, or the soft and the hard one."""

    def __init__(self, module, *arguments, fresh=False, open_files=None, **options):
        self._words = (module, *map(str, arguments))
        self._open_files = _limits(open_files)
        self._report = None
        self._is_forked = not fresh and _can_be_forked(options.get("env"))
        if not self._is_forked and open_files is not None:
            options["preexec_fn"] = _limiting(open_files)
        super().__init__([sys.executable, "-m", *self._words], **options)

    def fileno(self):
        """Readable once it has ended."""
        return self._report.fileno()

    def _execute_child(self, *given):
        if not self._is_forked:
            super()._execute_child(*given)
            return
        bound = inspect.signature(super()._execute_child).bind(*given).arguments
        streams = [bound[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "words": self._words,
            "files": tuple(bound["pass_fds"]),
            "open_files": self._open_files,
            "cwd": str(Path(bound["cwd"] or ".").absolute()),
            "env": dict(os.environ if bound["env"] is None else bound["env"]),
            "session": bound["start_new_session"],
        }
        self._report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [number if file == -1 else file for number, file in enumerate(streams)]
        files = [theirs.fileno(), *files, *request["files"]]
        with theirs:
            socket.send_fds(_control(), [pickle.dumps(request)], files)
        said = pickle.loads(self._report.recv(4096))
        assert said is not True, "it ended before it was the program: is its request wrong?"
        self.pid, _ = said
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(bound[name] for name in ends))

    def _internal_poll(self, *given, **more):
        if not self._is_forked:
            return super()._internal_poll(*given, **more)
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, wait_flags):
        if not self._is_forked:
            return super()._try_wait(wait_flags)
        try:
            self._report.recv(4096, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        with self._report as report:
            report.shutdown(socket.SHUT_WR)  # seen
            report.setblocking(True)  # a loop may have changed that
            status, seconds = pickle.loads(report.recv(4096))
        SPENT.append(seconds)
        return self.pid, status


def run(module, *arguments, **options):
    """The exit status of a program, what it printed, and what it said besides."""
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Program(module, *arguments, **options) as program:
        try:
            printed, said = program.communicate(timeout=LIMIT_S)
        except BaseException:
            program.kill()
            raise
    return program.returncode, printed, said


class AsyncProgram:
    """A process as `asyncio.create_subprocess_exec` returns it. Create it in the loop."""

    def __init__(self, program):
        self.pid, self.stdin, self.returncode = program.pid, program.stdin, None
        self.stdout, self.stderr = map(_reader, (program.stdout, program.stderr))
        self._program, self._ended = program, asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(program.fileno(), self._end)

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    async def wait(self):
        await self._ended.wait()
        return self.returncode

    async def communicate(self):
        """All that it said from now on, once it has ended."""
        if self.stdin is not None:
            self.stdin.close()
        said = await asyncio.gather(_read(self.stdout), _read(self.stderr))
        await self.wait()
        return tuple(said)

    def _end(self):
        self._loop.remove_reader(self._program.fileno())
        self.returncode = self._program.wait()
        self._ended.set()
        if self.stdin is not None:
            self.stdin.close()


async def start(module, *arguments, fresh=False, open_files=None, **options):
    """Start a program in a loop: options as of `child_process.start_child`."""
    if fresh or not _can_be_forked(options.get("env")):
        if open_files is not None:
            options["preexec_fn"] = _limiting(open_files)
        words = (sys.executable, "-m", module, *map(str, arguments))
        return await _start_child(*words, **options)
    return AsyncProgram(Program(module, *arguments, open_files=open_files, bufsize=0, **options))


@asynccontextmanager
async def running(*words, fresh=False, open_files=None, **environ):
    """Run `kairos WORDS` with pipes for what it prints and says. It is killed in the end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {**os.environ, **environ}
    process = await start(
        "kairos.cli.main", *words, fresh=fresh, open_files=open_files, env=environ, **pipes
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def outcome(*words, **given):
    """Return the exit status of `kairos WORDS`, what it printed, and what it said besides."""
    async with running(*words, **given) as process, asyncio.timeout(LIMIT_S):
        printed, said = await process.communicate()
        return process.returncode, printed.decode(), said.decode()


async def start_child(program, *arguments, **options):
    """As `child_process.start_child`; `python -m MODULE` is a fork."""
    if program == sys.executable and arguments[0] == "-m":
        return await start(*arguments[1:], **options)
    return await _start_child(program, *arguments, **options)


def forks_of(control):
    """Have programs made by the process at the other end of this socket."""
    _controls.append(control)


def children(pid):
    """List a program's children in the order in which they were started.

    Children that a fork has by its forker are its own. A child that ends while the list is made
    is left out.
    """
    found = []
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            is_forker = Path(f"/proc/{each}/comm").read_text().strip() == FORKER
            found += children(int(each)) if is_forker else [int(each)]
    return found


_controls = []
SPENT = []  # CPU seconds of forks that have ended: children of another process than this


def _reader(pipe):
    if pipe is None:
        return None
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()

    def read():
        if said := pipe.read(65536):
            reader.feed_data(said)
        else:
            loop.remove_reader(pipe)
            pipe.close()
            reader.feed_eof()

    loop.add_reader(pipe, read)
    return reader


async def _read(reader):
    return None if reader is None else await reader.read()


def _limits(open_files):
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files is None:
        return now
    return open_files if isinstance(open_files, tuple) else (open_files, now[1])


def _limiting(open_files):
    return partial(resource.setrlimit, resource.RLIMIT_NOFILE, _limits(open_files))


def _can_be_forked(environ):
    if sys.platform != "linux":
        return False
    ours, theirs = map(_read_at_start, (os.environ, os.environ if environ is None else environ))
    return ours == theirs


def _read_at_start(environ):
    """Return the variables that take effect only before the interpreter starts."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def _control():
    if not _controls:
        _controls.append(_forking())
    return _controls[-1]


def prepare():
    """Start the process that forks, unless it runs already."""
    _control()


def _forking():
    """Start the process that forks. It ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        forking = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host.forking", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(forking.wait)  # after the next
    atexit.register(ours.close)
    return ours
