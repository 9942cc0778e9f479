"""The process that has imported what commands need, and of which `forked` programs are forks.

Started with the number of a socket. A request is `pickle` of a `Request`'s fields, and four files:
the three standard streams, and a socket. On that the fork says its number, and this process, once
the fork has ended, its status and CPU seconds. Ends when the socket is closed.
"""

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
from select import select

# What commands import at their start or when they begin to work. A module that is missing here
# costs time in every fork, and nothing else.
IMPORTED = (
    "kairos.cli.main",
    "kairos.cli.run_follow",
    "kairos.live.engines.child",
    "kairos.live.service",
    "kairos.standin.server",
    "kairos.tools.flow_run",
    "rich.console",
    "rich.progress",
    "rich.table",
)
LONGEST = 1 << 18  # a request with an environment


def main():
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there by now is not looked through, and so not copied, in each fork
    request, streams, report = _requests(socket.socket(fileno=int(sys.argv[1])))
    words = _become(request, streams)
    with report:  # by now it leads its group, where it is to
        report.send(pickle.dumps((os.getpid(), None)))
    # As in a process of its own, where it is run before anything has imported it.
    for word in words[:2]:
        sys.modules.pop(word, None)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _requests(control):
    """Fork for each request. Returns in the forks only: a request, its streams and its socket."""
    reports = {}
    ended, ending = socket.socketpair()
    ending.setblocking(False)
    signal.set_wakeup_fd(ending.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select([control, ended], [], [])
        if ended in readable:
            ended.recv(4096)
            _report_ended(reports)
        if control not in readable:
            continue
        said, files, _, _ = socket.recv_fds(control, LONGEST, 4)
        if not said:
            os._exit(0)
        *streams, report = files
        report = socket.socket(fileno=report)
        if pid := os.fork():
            reports[pid] = report
            for each in streams:
                os.close(each)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (control, ended, ending, *reports.values()):
            each.close()
        return pickle.loads(said), streams, report


def _report_ended(reports):
    with suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            with reports.pop(pid) as report, suppress(BrokenPipeError):
                report.send(pickle.dumps((status, used.ru_utime + used.ru_stime)))


def _become(request, streams):
    """Take over what the request gives; returns the module and its arguments."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[0:1] = [request["cwd"], *path]
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    return list(request["words"])


if __name__ == "__main__":
    main()
