"""The inside of an evaluation: gives up all it can do, then runs untrusted code and its tests.

`evaluation.py` starts this file alone, `python -I -S -u sandbox.py VERDICT_FD`, in a session and an
empty directory of its own. It makes new namespaces, forks, and from then on only watches the time.
The child gives everything away for good and runs the code. It is the first process of its process
namespace: what the code starts dies with it.

Each layer is tried by itself and the missing ones are told, so that a kernel without one still has
the others.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

TIME_UP = 124  # exit status, as of timeout(1)

_NOBODY = 65534
_SCRATCH_FILES = 64
_GLANCE_S = 0.02
_OPEN_FILES = 64
_REASON_LIMIT = 400  # characters
_READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/urandom")

# From Linux's headers. Numbers of system calls above 423 are the same on all architectures.
_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_MOUNT_PRIVATE, _MOUNT_NOSUID_NODEV_NOEXEC = 0x44000, 0xE
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_FILE, _TRUNCATE = 2, 4, 8, 32, 256, 1 << 14
_CLONE_THREAD = 0x00010000
_ALLOW, _DENY, _EQUAL, _MASKED = 0x7FFF0000, 0x00050000, 4, 7  # of libseccomp
_FILE_COMMANDS = (
    0,
    1,
    2,
    3,
    4,
    5,
    1030,
)  # F_DUPFD to F_GETLK, F_DUPFD_CLOEXEC: no owner, no signals
_DEVICE_REQUESTS = (
    0x5401,
    0x5413,
    0x5421,
    0x5450,
    0x5451,
    0x541B,
)  # what a terminal is, non-blocking
_PROCESS_OPTIONS = (3, 15, 16, 39, 0x53564D41)  # its name, what it lost, names of its memory
# What Python computes, reads and writes with. Files are Landlock's to guard.
_CALLS = """
    read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 lseek _llseek
    open openat close close_range dup dup2 dup3 pipe pipe2 fsync fdatasync ftruncate ftruncate64
    stat fstat lstat newfstatat fstatat64 statx access faccessat faccessat2 readlink readlinkat
    getcwd getdents getdents64 statfs fstatfs unlink unlinkat rename renameat renameat2 flock
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
    eventfd eventfd2 sendfile copy_file_range
    mmap mmap2 munmap mprotect mremap madvise brk
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait rt_sigsuspend rt_sigpending
    sigaltstack pause alarm setitimer getitimer restart_syscall
    getpid getppid gettid getuid geteuid getgid getegid getgroups getresuid getresgid
    getpgrp getpgid getsid uname sysinfo getrusage times getrlimit getcpu
    clock_gettime clock_getres gettimeofday time nanosleep clock_nanosleep
    futex futex_waitv set_robust_list set_tid_address rseq membarrier arch_prctl sched_yield
    getrandom capget exit exit_group
"""

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


class _Comparison(ctypes.Structure):
    """A condition on an argument of a system call: `struct scmp_arg_cmp`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("one", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
    )


def _equals(argument: int, value: int) -> _Comparison:
    return _Comparison(argument, _EQUAL, value, 0)


_Rule = tuple[str, tuple[_Comparison, ...]]


def _allowed(may_fork: bool) -> Iterator[_Rule]:
    """Yield the system calls that are let through, and for which arguments."""
    for name in _CALLS.split():
        yield name, ()
    for name, argument, values in (
        ("fcntl", 1, _FILE_COMMANDS),
        ("ioctl", 1, _DEVICE_REQUESTS),
        ("prctl", 0, _PROCESS_OPTIONS),
        ("kill", 0, (os.getpid(),)),
        ("tgkill", 0, (os.getpid(),)),
        ("sched_getaffinity", 0, (0,)),
    ):
        for value in values:
            yield name, (_equals(argument, value),)
    yield "prlimit64", (_equals(0, 0), _equals(2, 0))  # its own, to read
    yield "clone", (_Comparison(0, _MASKED, _CLONE_THREAD, _CLONE_THREAD),)
    if may_fork:
        for name in ("fork", "vfork", "wait4", "waitid"):
            yield name, ()
        new = _NEW_MOUNTS | _NEW_IPC | _NEW_USER | _NEW_PROCESSES | _NEW_NETWORK
        yield "clone", (_Comparison(0, _MASKED, new | _CLONE_THREAD, 0),)


def limit_calls(may_fork: bool) -> None:
    """Allow the system calls that Python needs to compute, and no others, by libseccomp.

    Nothing reaches a process outside, also where that is the same user's: no signals, limits,
    priorities or memory. Nothing is left when the code has ended: no System V memory, queue or
    semaphore, no key, no file without a name. No socket can be made, nor a namespace.

    Raises:
        OSError: libseccomp or the kernel does not do it.
    """
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(_DENY | errno.EPERM))
    if not rules:
        raise OSError("libseccomp does not know this machine")

    def add(action: int, name: str, comparisons: tuple[_Comparison, ...]) -> None:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        array = (_Comparison * len(comparisons))(*comparisons)
        failed = seccomp.seccomp_rule_add_array(rules, action, number, len(comparisons), array)
        if failed and number >= 0:  # negative: this architecture has no such call
            raise OSError(-failed, f"seccomp: {name}: {os.strerror(-failed)}")

    for name, comparisons in _allowed(may_fork):
        add(_ALLOW, name, comparisons)
    add(_DENY | errno.ENOSYS, "clone3", ())  # its flags are out of sight: the C library uses clone
    if failed := seccomp.seccomp_load(rules):
        raise OSError(-failed, f"seccomp: {os.strerror(-failed)}")


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
        is_apart = "scratch" not in " ".join(layers.missing)
    else:
        layers.missing.append("scratch file system (it would be mounted for everyone)")
        is_apart = False
    if not is_apart:  # then no more can be open at once than may be written
        task["limits"]["FSIZE"] = task["scratch_bytes"] // _OPEN_FILES
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
    why = _watch(watched, None if is_apart else task["scratch_bytes"])
    os.kill(child, signal.SIGKILL)  # where it has ended it is still a zombie, so the id is its own
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if why in (signal.SIGALRM, signal.SIGXFSZ):
        os._exit(TIME_UP if why == signal.SIGALRM else 128 + signal.SIGXFSZ)
    os._exit(128 - status if status < 0 else min(status, TIME_UP - 1))


def _watch(signals: set[signal.Signals], scratch_bytes: int | None) -> int:
    """Wait for a signal, and return it: SIGXFSZ where the directory holds more than it may.

    Args:
        signals: What is waited for.
        scratch_bytes: None: a file system of its own limits the directory.
    """
    if scratch_bytes is None:
        return signal.sigwait(signals)
    while (found := signal.sigtimedwait(signals, _GLANCE_S)) is None:
        sizes = [*islice(_sizes(), _SCRATCH_FILES + 1)]
        if len(sizes) > _SCRATCH_FILES or sum(sizes) > scratch_bytes:
            return signal.SIGXFSZ
    return found.si_signo


def _sizes() -> Iterator[int]:
    """Yield the sizes of the files in the working directory."""
    with os.scandir(".") as files:
        for each in files:
            try:
                yield each.stat(follow_symlinks=False).st_size
            except FileNotFoundError:  # it is gone again
                continue


def _run(task: dict[str, Any], layers: _Layers, verdict_fd: int) -> None:
    layers.add("resource limits", limit_resources, task["limits"])
    layers.add("no new privileges", forbid_new_privileges)
    layers.add("Landlock", restrict_files)
    layers.add("nobody", become_nobody)
    layers.add("seccomp", limit_calls, task["limits"]["NPROC"] > 0)
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
