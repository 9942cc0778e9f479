"""Measure what TLS connections that stay half open cost others: `python -m bench.half_open`.

One address opens 1,000, says hello on all of them at once, and never ends a handshake. A client
with a connection of its own asks on. Two servers serve the same: one with Kairos's TLS transport,
one with the event loop's TLS. Printed are how many connections each keeps, the longest wait of the
client, and the CPU time of a request without the attack. It takes half a minute.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import uvloop

from bench.systems import free_ports
from bench.tls import certificate
from kairos.gateway import HttpServer, listening_socket
from kairos.gateway.server.connection import Connection
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.gateway.server.http import PortTls
from kairos.request import Receive, Scope, Send
from kairos.settings import TlsFiles

HALF_OPEN, MOST, ROUNDS = 1_000, 2_000, 3
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"whole"})


async def serve(kind: str, port: int, directory: Path) -> None:
    shown, key = certificate(directory, "p256")
    tls = PortTls("a port", TlsFiles(str(shown), str(key)))
    limits, loop = ConnectionLimits(MOST, 0.25), asyncio.get_running_loop()
    with listening_socket("127.0.0.1", port) as sock:
        if kind == "own":
            await HttpServer(answer, limits=limits, tls=tls).serve(sock)
        else:
            port_of = HttpServer(answer, limits=limits)
            server = await loop.create_server(
                lambda: Connection(port_of), sock=sock, ssl=tls.context()
            )
            await server.serve_forever()


def hello(trusting: ssl.SSLContext) -> bytes:
    said = ssl.MemoryBIO()
    tls = trusting.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return said.read()


def sockets_of(process: int) -> int:
    files = Path(f"/proc/{process}/fd").iterdir()
    return sum("socket" in str(each.readlink()) for each in files)


def cpu_s(process: int) -> float:
    times = Path(f"/proc/{process}/stat").read_text().split()
    return (int(times[13]) + int(times[14])) / os.sysconf("SC_CLK_TCK")


def connected(port: int) -> socket.socket:
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def measure(kind: str, directory: str) -> str:
    (port,) = free_ports(1)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    command = [sys.executable, "-m", "bench.half_open", kind, str(port), directory]
    with subprocess.Popen(command) as server, contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        client = trusting.wrap_socket(connected(port), server_hostname="localhost")
        stack.enter_context(client)

        def ask() -> float:
            began_s, got = time.perf_counter(), b""
            client.sendall(GET)
            while not got.endswith(b"whole"):
                got += client.recv(4096)
            return time.perf_counter() - began_s

        cpu_before = cpu_s(server.pid)
        for _ in range(5_000):
            ask()
        us = (cpu_s(server.pid) - cpu_before) * 200
        others = [stack.enter_context(socket.socket()) for _ in range(HALF_OPEN)]
        before = sockets_of(server.pid)
        for each in others:
            each.bind(("127.0.0.2", 0))
            each.connect(("127.0.0.1", port))
        time.sleep(0.5)
        said = hello(trusting)

        def attack() -> None:
            for each in others:
                with contextlib.suppress(OSError):
                    each.send(said)

        threading.Thread(target=attack).start()
        until_s = time.monotonic() + 2
        worst_s = 0.0
        while time.monotonic() < until_s:
            worst_s = max(worst_s, ask())
        kept = sockets_of(server.pid) - before
        return (
            f"{kind:9} kept {kept:5}   longest wait {worst_s * 1e3:4.0f} ms   {us:3.0f} us a call"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
    with tempfile.TemporaryDirectory() as directory:
        for each in ("own", "asyncio") * ROUNDS:
            sys.stdout.write(measure(each, directory) + "\n")
