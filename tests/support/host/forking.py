"""A process that has imported what commands need; `forked` programs are forks of it.

Started with the number of a socket, it ends when that is closed. A request is pickled, and comes
with the three standard streams, a socket to report on, and files that the fork is to have besides.
The fork reports `(its number, None)` once it is the program. When it has ended we report `True`;
it is there, dead, until the other end answers, and gets `(its status, its CPU seconds)`.

Each fork has such a process of its own, for what it starts itself as `python -m MODULE`: that would
else be the dearest part of it. It is the parent of what is started, and in the fork's group.
"""

import atexit
import fcntl
import gc
import importlib
import os
import pickle
import resource
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from select import POLLIN, poll

from kairos.host import child_process
from tests.support.host import forked

# What commands import at their start or when they begin to work. A module that is missing here
# costs time in every fork, and nothing else.
IMPORTED = (
    "kairos.cli.main",
    "kairos.cli.run_follow",
    "kairos.cli.demos.command",
    "kairos.engines.child",
    "kairos.service",
    "kairos.cluster.workers.child",
    "kairos.cluster.workers.supervisor",
    "kairos.simulate.standin.server",
    "kairos.observe.explain",
    "kairos.workflows.start.run_task",
    "kairos.simulate.replay",
    "kairos.workflows.run.run_shown",
    "pydantic.v1",
    "rich.console",
    "rich.progress",
    "rich.table",
)
STREAMS = 3
NAME = Path("/proc/self/comm")
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_HIGH = 512  # numbers of files above all that a fork is to have


def main():
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there by now is not looked through, and so not copied, in each fork
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, files, report = _requests(control)
        if request["session"]:
            os.setsid()
        ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        NAME.write_text(forked.FORKER)
        if forker := os.fork():
            control.close()
            break
        for each in (ours, report):
            each.close()
        for each in files:
            os.close(each)
    ours, report = (socket.socket(fileno=_high(each.detach())) for each in (ours, report))
    words = _become(request, files)
    _start_forks(ours, forker)
    with report:
        report.send(pickle.dumps((os.getpid(), None)))
    # As in a process of its own, where it is run before anything has imported it.
    for word in words[:2]:
        sys.modules.pop(word, None)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _requests(control):
    """Fork for each request. Returns in the forks only: a request, its files and its socket."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    ended, ending = socket.socketpair()
    ending.setblocking(False)
    signal.set_wakeup_fd(ending.fileno(), warn_on_full_buffer=False)
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    living, dead = {}, {}  # sockets to report on, by process
    while True:
        ready = poll()
        for each in (control, ended, *dead.values()):
            ready.register(each, POLLIN)
        readable = {number for number, _ in ready.poll()}
        if ended.fileno() in readable:
            ended.recv(4096)
            _report_ended(living, dead)
        _bury({pid: report for pid, report in dead.items() if report.fileno() in readable}, dead)
        if control.fileno() not in readable:
            continue
        said, files, _, _ = socket.recv_fds(control, 1 << 18, 250)
        if not said:
            os._exit(0)
        report = socket.socket(fileno=files.pop(0))
        if pid := os.fork():
            living[pid] = report
            for each in files:
                os.close(each)
            continue
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in (control, ended, ending, *living.values(), *dead.values()):
            each.close()
        return pickle.loads(said), files, report


def _report_ended(living, dead):
    for pid in [each for each in living if _has_ended(each)]:
        dead[pid] = living.pop(pid)
        _tell(dead[pid], True)


def _bury(seen, dead):
    for pid, report in seen.items():
        _, status, used = os.wait4(pid, 0)
        with report:
            _tell(report, (status, used.ru_utime + used.ru_stime))
        del dead[pid]


def _has_ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _tell(report, fact):
    with suppress(OSError):  # nobody asks any more
        report.send(pickle.dumps(fact))


def _become(request, files):
    """Take over what the request gives; returns the module and its arguments."""
    numbers = (*range(STREAMS), *request["files"])
    for number, file in zip(numbers, list(map(_high, files)), strict=True):
        os.dup2(file, number)
        os.close(file)
    NAME.write_text(Path(sys.executable).name)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[0:1] = [request["cwd"], *path]
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    return list(request["words"])


def _high(file):
    """Move a file out of the way of numbers that are asked for."""
    high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(file)
    return high


def _start_forks(control, forker):
    """Let what this process starts be forks too. `forker`: the process that makes them."""
    forked.forks_of(control)
    child_process.start_child = forked.start_child
    atexit.register(os.waitpid, forker, 0)  # after the next: its time is a part of ours
    atexit.register(control.close)


if __name__ == "__main__":
    main()
