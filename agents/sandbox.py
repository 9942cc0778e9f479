"""The inside of an evaluation: gives up all it can do, then runs untrusted code and its tests.

`evaluation.py` starts this file alone, `python -I -S -u sandbox.py VERDICT_FD`, in a session and an
empty directory of its own. It makes new namespaces, forks, and from then on only watches the time.
The child gives everything away for good and runs the code. It is the first process of its process
namespace: what the code starts dies with it.

Each layer is tried by itself and the missing ones are told, so that a kernel without one still has
the others.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

TIME_UP = 124  # exit status, as of timeout(1)

_NOBODY = 65534
_SCRATCH_FILES = 64
_OPEN_FILES = 64
_REASON_LIMIT = 400  # characters
_READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/urandom")

# From Linux's headers. Numbers of system calls above 423 are the same on all architectures.
_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_MOUNT_PRIVATE, _MOUNT_NOSUID_NODEV_NOEXEC = 0x44000, 0xE
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_FILE, _TRUNCATE = 2, 4, 8, 32, 256, 1 << 14
_IO_URING_SETUP = 425
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # audit id, socket()

libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *args: int | bytes | None) -> int:
    """Call the C library.

    Raises:
        OSError: the call failed.
        AttributeError: this system has no such function.
    """
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = getattr(libc, function)(*wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")
    return result


def enter_namespaces() -> None:
    """Own network (with nothing in it), processes, IPC and mounts, for the child to come."""
    flags = _NEW_NETWORK | _NEW_PROCESSES | _NEW_IPC | _NEW_MOUNTS
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _call("unshare", flags)
        return
    _call("unshare", flags | _NEW_USER)
    maps = {"setgroups": "deny", "uid_map": f"{_NOBODY} {uid} 1", "gid_map": f"{_NOBODY} {gid} 1"}
    for name, text in maps.items():
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


def mount_scratch(size: int) -> None:
    """A small file system in memory over the working directory. Needs a mount namespace."""
    here = bytes(Path.cwd())
    _call("mount", b"none", b"/", None, _MOUNT_PRIVATE, None)
    options = f"size={size},nr_inodes={_SCRATCH_FILES},mode=777".encode()
    _call("mount", b"tmpfs", here, b"tmpfs", _MOUNT_NOSUID_NODEV_NOEXEC, options)
    os.chdir(here)


def limit_resources(limits: dict[str, int]) -> None:
    for name, limit in {**limits, "NOFILE": _OPEN_FILES, "CORE": 0}.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))


def forbid_new_privileges() -> None:
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict_files() -> None:
    """Landlock: read Python and its libraries, write files in the working directory, no more.

    Not even directories can be made, so there is no deep tree to clean up; nothing can be executed.
    Where the kernel is new enough, TCP and signals to others are taken away too.
    """
    abi = _call("syscall", _LANDLOCK_CREATE, None, 0, 1)
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    ruleset = struct.pack("QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = _call("syscall", _LANDLOCK_CREATE, ruleset, size, 0)
    grants = dict.fromkeys([*sys.path, *_READABLE], _READ_FILE | _READ_DIR)
    grants["/dev/null"] = _READ_FILE | _WRITE_FILE
    grants["."] = _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | _TRUNCATE
    for path, rights in grants.items():
        if not Path(path).exists():
            continue
        valid = handled if Path(path).is_dir() else handled & ~_READ_DIR
        fd = os.open(path, os.O_PATH)
        _call("syscall", _LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights & valid, fd), 0)
        os.close(fd)
    _call("syscall", _LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def become_nobody() -> None:
    """Give up root, and the capabilities that a user namespace came with."""
    if os.geteuid() == 0:
        os.chown(".", _NOBODY, _NOBODY)
        _keep_library_readable()
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _call("capset", struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _keep_library_readable() -> None:
    """Reach the standard library through open directories: root's Python may lie where nobody
    else can go, in /root for example."""

    def reach(path: str) -> str:
        return f"/proc/self/fd/{os.open(path, os.O_PATH)}" if Path(path).is_dir() else path

    sys.path[:] = map(reach, sys.path)
    for module in list(sys.modules.values()):
        if hasattr(module, "__path__"):
            module.__path__ = list(map(reach, module.__path__))


def forbid_sockets() -> None:
    """seccomp: no socket() and no io_uring, which could make one.

    Besides the network this closes what namespaces and Landlock leave open: sockets in the file
    system, such as a container engine's.
    """
    architecture, socket_call = _ARCHITECTURES[os.uname().machine]
    x32_calls = 0x40000000  # a second set of numbers on x86_64
    program = [
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 0, 5, architecture),  # another: deny
        (0x20, 0, 0, 0),  # load the call's number
        (0x35, 3, 0, x32_calls),  # at least: deny
        (0x15, 2, 0, socket_call),  # equal: deny
        (0x15, 1, 0, _IO_URING_SETUP),
        (0x06, 0, 0, 0x7FFF0000),  # allow
        (0x06, 0, 0, 0x00050001),  # deny with EPERM
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    _call(
        "prctl", _PR_SET_SECCOMP, 2, struct.pack("HP", len(program), ctypes.addressof(code)), 0, 0
    )


class _Layers:
    """Tries layers and keeps which of them this system could not give."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def add(self, name: str, step: Callable[..., None], *args: Any) -> bool:
        """Whether the layer is there."""
        try:
            step(*args)
        except (OSError, AttributeError, ValueError, KeyError) as error:
            self.missing.append(f"{name} ({error})")
            return False
        return True


def main(verdict_fd: int) -> NoReturn:
    task = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    layers = _Layers()
    if layers.add("namespaces", enter_namespaces):
        layers.add("scratch file system", mount_scratch, task["scratch_bytes"])
    else:
        layers.missing.append("scratch file system (it would be mounted for everyone)")
    watched = {signal.SIGCHLD, signal.SIGALRM, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
            _run(task, layers, verdict_fd)
        finally:
            os._exit(1)
    signal.setitimer(signal.ITIMER_REAL, task["timeout_s"])
    time_up = signal.sigwait(watched) == signal.SIGALRM
    os.kill(child, signal.SIGKILL)  # where it has ended it is still a zombie, so the id is its own
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(TIME_UP if time_up else 128 - status if status < 0 else min(status, TIME_UP - 1))


def _run(task: dict[str, Any], layers: _Layers, verdict_fd: int) -> None:
    layers.add("resource limits", limit_resources, task["limits"])
    layers.add("no new privileges", forbid_new_privileges)
    layers.add("Landlock", restrict_files)
    layers.add("nobody", become_nobody)
    layers.add("seccomp", forbid_sockets)
    # The code may replace whatever it can name, so what is needed after it is taken before.
    write, dumps, leave = os.write, json.dumps, os._exit
    write(verdict_fd, dumps({"missing_layers": layers.missing}).encode() + b"\n")
    error = _failure(task["code"], task["tests"])
    write(verdict_fd, dumps({"error": error} if error else {"token": task["token"]}).encode())
    leave(0)


def _failure(code: str, tests: str) -> str | None:
    """Run the code, then the tests in the same module. Returns what went wrong, if anything."""
    module = sys.modules["solution"] = ModuleType("solution")
    try:
        exec(compile(code, "<code>", "exec"), module.__dict__)  # noqa: S102 - in a sandbox
        exec(compile(tests, "<tests>", "exec"), module.__dict__)  # noqa: S102
    except BaseException as error:  # noqa: BLE001 - SystemExit is no success either
        line = _line_of(error, "<tests>", tests) or _line_of(error, "<code>", code)
        said = str(error)[:_REASON_LIMIT]
        return type(error).__name__ + (said and f": {said}") + (line and f" in: {line}")
    return None


def _line_of(error: BaseException, filename: str, source: str) -> str:
    """The last line of the source that the error came through, or nothing."""
    line, step = "", error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == filename:
            line = source.splitlines()[step.tb_lineno - 1].strip()
        step = step.tb_next
    return line[:_REASON_LIMIT]


if __name__ == "__main__":
    main(int(sys.argv[1]))
