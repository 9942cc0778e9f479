"""A gateway that is attacked, and three figures of the harm.

How late its event loop is at the worst, by how much the peak of its memory grows, and how long
others wait.
"""

import contextlib
import hashlib
import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from tests.attacks.flood import MODEL
from tests.attacks.watched import LoopDelay
from tests.support.ports import free_ports

CALLER, OTHER = "attacker", "other"
READY_S, LIMIT_S = 60, 120
_SETTLE_S = 0.3  # a few ticks, in which a delay that an attack leaves behind is seen
_CONFIG = """
workflow_idle_s = 60
[flows]
directory = "{directory}/flows"
[batches]
directory = "{directory}/batches"
[[key]]
sha256 = "{caller}"
tenant = "{caller_name}"
[[key]]
sha256 = "{other}"
tenant = "{other_name}"
"""


class Harm(msgspec.Struct, frozen=True):
    """Figures of one attack. `status`: of the answer, or the fate of the connection."""

    late_s: float  # the loop, at the worst
    own_s: float  # the same, without the time in which other processes had the cores
    grew_bytes: int
    waited_s: float  # the longest of others' requests
    own_bytes: int
    took_s: float
    status: str

    @property
    def is_bounded(self):
        """Whether it is within what any request, row or stream may do."""
        return self.own_s <= 0.1 and self.grew_bytes <= 8 * self.own_bytes + (32 << 20)


class Gateway:
    """`kairos serve` before engines, as a process that can be asked from threads."""

    def __init__(self, port, process, delay):
        self.port, self.process, self._delay = port, process, delay

    def post(self, path, body, *, method="POST", kind="application/json", length=True, more=()):
        """Ask once, and return the status, as a text, and the size of the answer.

        `kind`: the body's type; `length`: whether it is declared; `more`: header lines.
        """
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {CALLER}",
            "Connection: close",
            f"Content-Type: {kind}",
            *((f"Content-Length: {len(body)}",) if length else ()),
            *more,
        ]
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port))) as sock:
            sock.settimeout(LIMIT_S)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            return _answer(sock)

    def memory_bytes(self, name):
        """`VmRSS`, or `VmHWM`: the peak since it was forgotten."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) << 10

    @contextlib.contextmanager
    def measured(self, own_bytes):
        """Yield a list to which the attack adds its status; it gets the harm as its last."""
        with _others(self.port) as watching:
            time.sleep(_SETTLE_S)
            before = self.memory_bytes("VmRSS")
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
            self._delay.forget()
            watching.forget()
            said, began_s = [], time.monotonic()
            yield said
            took_s = time.monotonic() - began_s
            time.sleep(_SETTLE_S)
            if self.process.poll() is not None:
                said.append(Harm(LIMIT_S, LIMIT_S, 0, LIMIT_S, own_bytes, took_s, "it died"))
                return
            said.append(
                Harm(
                    *self._delay.read()[:2],
                    max(0, self.memory_bytes("VmHWM") - before),
                    watching.longest_s(),
                    own_bytes,
                    took_s,
                    " ".join(map(str, said)),
                )
            )


def _answer(sock):
    """The status, and the size of what was answered."""
    size, first = 0, b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 20):
            first = first if len(first) > 20 else first + data[:20]
            size += len(data)
    found = re.match(rb"HTTP/1.1 (\d+)", first)
    return (found[1].decode() if found else "cut off"), size


class _Watching:
    def __init__(self, longest, done):
        self._longest, self._done = longest, done

    def forget(self):
        self._longest.value = 0.0

    def longest_s(self):
        return self._longest.value


@contextlib.contextmanager
def _others(port):
    """Another tenant that asks for health and for short answers, in a process of its own."""
    context = multiprocessing.get_context("fork")
    longest, done = context.Value("d", 0.0), context.Event()
    process = context.Process(target=_ask, args=(port, longest, done), daemon=True)
    process.start()
    try:
        yield _Watching(longest, done)
    finally:
        done.set()
        process.join(LIMIT_S)


def _ask(port, longest, done):
    body = json.dumps(
        {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    )
    headers = {"Authorization": f"Bearer {OTHER}", "Content-Type": "application/json"}

    def health(connection):
        connection.request("GET", "/health")

    def call(connection):
        connection.request("POST", "/v1/chat/completions", body, headers)

    def loop(ask):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        while not done.is_set():
            began_s = time.monotonic()
            try:
                ask(connection)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                time.sleep(0.05)
            longest.value = max(longest.value, time.monotonic() - began_s)
            time.sleep(0.01)

    threading.Thread(target=loop, args=(health,), daemon=True).start()
    loop(call)


@contextlib.contextmanager
def gateway(engine_port):
    """Yield a fresh one that knows its engine."""
    with tempfile.TemporaryDirectory(prefix="kairos-attacks-") as scratch:
        directory = Path(scratch)
        config = directory / "kairos.toml"
        names = {"caller": CALLER, "other": OTHER}
        config.write_text(
            _CONFIG.format(
                directory=directory,
                **{name: hashlib.sha256(key.encode()).hexdigest() for name, key in names.items()},
                **{f"{name}_name": key for name, key in names.items()},
            )
        )
        port, admin = free_ports(2)
        words = ("tests.attacks.watched", str(directory / "delay"), "serve")
        told = ("--config", str(config), "--port", str(port), "--admin-port", str(admin))
        engine = ("--engine", f"http://127.0.0.1:{engine_port}")
        with _process(*words, *told, *engine, log=directory / "log") as process:
            made = Gateway(port, process, LoopDelay(directory / "delay"))
            _until(lambda: _is_ready(made), process, directory / "log")
            yield made


def _is_ready(made):
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    with contextlib.suppress(OSError):
        status, _ = made.post("/v1/chat/completions", json.dumps(body).encode())
        made.post("/v1/nothing", b"{}")  # what FastAPI serves is built by now
        return status == "200"
    return False


@contextlib.contextmanager
def engine():
    """Yield the port of an engine that answers as quickly as it can."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="kairos-attacks-") as scratch:
        log = Path(scratch) / "log"
        with _process("tests.attacks.flood", str(port), log=log) as process:
            _until(lambda: "ready" in log.read_text(), process, log)
            yield port


@contextlib.contextmanager
def _process(*words, log):
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "kairos.engines.child", *words],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()


def _until(is_so, process, log):
    ends_s = time.monotonic() + READY_S
    while not is_so():
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < ends_s, log.read_text()[-2000:]
        time.sleep(0.05)
