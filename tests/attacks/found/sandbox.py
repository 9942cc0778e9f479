"""Try attacks of generated code on the process that evaluates it, and on its machine.

`python sandbox.py` prints a line of JSON for each: whether it succeeded, and what protection the
system could not give. `--without-namespaces` forbids these, as Docker's profile does. Before system
calls were allowed by name, 19 of them succeeded there, and 10 in a container of podman's.
"""

import asyncio
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile

# An attack prints "WON" once it has done what it must not. AGENT: the process to attack.
C = """
import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
AGENT = {agent}
def call(number, *arguments):
    return c.syscall(number, *[ctypes.c_long(each) for each in arguments])
def won(result):
    if result not in (-1, None):
        print("WON", flush=True)
"""
ATTACKS = {
    # Told of before.
    "limits-of-the-agent": "won(c.prlimit(AGENT, 7, (ctypes.c_ulong * 2)(0, 0), None))",
    "system-v-memory": "won(c.shmget(0, 1 << 26, 0o1666))",
    # Found since. Where no namespace hides the agent, the user is the same.
    "signal-to-the-agent": "os.kill(AGENT, 10); print('WON')",
    "signal-by-queue": "won(call(129, AGENT, 10, id(bytearray(128)) + 32))",
    "signal-by-descriptor": "won(call(434, AGENT, 0))",
    "signal-by-owner-of-a-pipe": (
        "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, AGENT)\n"
        "fcntl.fcntl(r, 10, 10)\nfcntl.fcntl(r, 4, 0o20000)\nos.write(w, b'x')\nprint('WON')"
    ),
    "signal-to-all": "os.kill(-1, 10); print('WON')",
    "priority-of-the-agent": "won(c.setpriority(0, AGENT, 19))",
    "scheduling-of-the-agent": "os.sched_setaffinity(AGENT, [0]); print('WON')",
    "memory-of-the-agent": (
        "class V(ctypes.Structure): _fields_ = [('a', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "b = ctypes.create_string_buffer(8)\nv = V(ctypes.addressof(b), 8)\n"
        "won(c.process_vm_readv(AGENT, ctypes.byref(v), 1, ctypes.byref(V(0x400000, 8)), 1, 0))"
    ),
    "debugger-of-the-agent": "won(c.ptrace(16, AGENT, 0, 0))",
    "environment-of-the-agent": "open(f'/proc/{AGENT}/environ').read(); print('WON')",
    "command-of-the-agent": "open(f'/proc/{AGENT}/cmdline').read(); print('WON')",
    "descriptors-of-the-agent": "os.listdir(f'/proc/{AGENT}/fd'); print('WON')",
    "queue-that-stays": "won(c.msgget(0, 0o1666))",
    "semaphore-that-stays": "won(c.semget(0, 100, 0o1666))",
    "posix-queue-that-stays": "won(call(240, id(b'/k') + 32, 0o102, 0o666, 0))",
    "key-that-stays": "won(call(248, id(b'user') + 32, id(b'k') + 32, id(b'x') + 32, 1, -4))",
    "file-without-a-name": "os.memfd_create('x'); print('WON')",
    "namespace-of-its-own": "won(c.unshare(0x10000000))",
    "namespace-by-clone": "won(call(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "socket": "import socket; socket.socket(); print('WON')",
    "socket-in-the-file-system": "import socket; socket.socket(1); print('WON')",
    "pair-of-sockets": "import socket; socket.socketpair(); print('WON')",
    "socket-by-other-numbers": "won(call(0x40000000 | 41, 2, 1, 0))",
    "socket-by-the-old-gate": (
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('b867010000bb02000000b901000000ba00000000cd80c3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "r = f()\nif r >= 0: print('WON')"
    ),
    "io-uring": "won(call(425, 8, id(bytearray(256)) + 32))",
    "program-in-the-kernel": "won(call(321, 0, id(bytearray(128)) + 32, 72))",
    "events-of-the-processor": "won(call(298, id(bytearray(128)) + 32, 0, -1, -1, 0))",
    "page-faults-in-user-space": "won(call(323, 0))",
    "watches": "won(c.inotify_init())",
    "session-of-its-own": "os.setsid(); print('WON')",
    "process-that-stays": "p = os.fork()\nprint('WON') if p else os._exit(0)",
    "another-program": "os.execv('/bin/true', ['true']); print('WON')",
    "file-elsewhere": "open('/tmp/left-behind', 'w'); print('WON')",
    "directories-without-end": "os.mkdir('d'); print('WON')",
    "device": "os.mknod('d', 0o20666, 0); print('WON')",
    "rights-of-a-file-elsewhere": "os.chmod('{file}', 0o777); print('WON')",
    "times-of-a-file-elsewhere": "os.utime('{file}'); print('WON')",
    "files-without-end": (
        "n = 0\nwhile n < 2000:\n    open(str(n), 'wb').write(bytes(1 << 14)); n += 1\nprint('WON')"
    ),
    "bytes-without-end": (
        "n = 0\nwhile n < 60:\n    open(str(n), 'wb').write(bytes(1 << 20)); n += 1\nprint('WON')"
    ),
    "deleted-files-that-are-open": (
        "k = []\nfor n in range(50):\n    f = open('x', 'wb'); f.write(bytes(1 << 20)); f.flush()\n"
        "    k.append(f); os.remove('x')\nprint('WON')"
    ),
    "root-again": "os.setuid(0); print('WON')",
}


def attack(victim, file):
    """Yield the name of each attack, whether it won, and what came of it."""
    sys.path.insert(0, os.environ.get("KAIROS_AGENTS", "."))
    from agents.evaluation import check_layers, evaluate

    asyncio.run(check_layers())
    for name, body in ATTACKS.items():
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        code = C.format(agent=victim.pid) + body.replace("{file}", file)
        found = asyncio.run(evaluate(code, "", timeout_s=10))
        won = "WON" in found.output or victim.poll() is not None
        won |= resource.getrlimit(resource.RLIMIT_NOFILE) != before
        yield {"attack": name, "won": won, "came": found.reason, "lacks": found.missing_layers}


def forbid_namespaces():
    """As Docker's own profile does, for a process that has no privileges."""
    c = ctypes.CDLL("libseccomp.so.2")
    c.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(c.seccomp_init(0x7FFF0000))
    for name in (b"unshare", b"mount", b"setns"):
        c.seccomp_rule_add_array(rules, 0x00050001, c.seccomp_syscall_resolve_name(name), 0, None)
    assert c.seccomp_load(rules) == 0


def main():
    if "--without-namespaces" in sys.argv:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(10001)
            os.setuid(10001)
        forbid_namespaces()
    with (
        tempfile.NamedTemporaryFile(prefix="kairos-victim-", dir="/tmp") as file,
        subprocess.Popen(["sleep", "600"]) as victim,
    ):
        try:
            for each in attack(victim, file.name):
                print(json.dumps(each), flush=True)
        finally:
            victim.kill()


if __name__ == "__main__":
    main()
