"""nginx as a reader of requests, which it passes to a server, and of responses."""

import asyncio
import contextlib
import os
import re
import shutil

import httptools
import pytest

from kairos.host import start_child
from tests.conformance.readers import REFUSED, Response, reading
from tests.support.ports import free_ports

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
LIMIT_S = 60
CASES_AT_ONCE = 64
SETTINGS = """
daemon off; master_process off; pid {folder}/pid; error_log /dev/null crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c;
  proxy_http_version 1.1; proxy_next_upstream off;
  proxy_ignore_client_abort on; lingering_close always; keepalive_requests 1000000;
  upstream takes {{ server 127.0.0.1:{takes} max_fails=0; keepalive 64; }}
  upstream gives {{ server 127.0.0.1:{gives} max_fails=0; }}
  server {{
    listen 127.0.0.1:{requests};
    location / {{
      proxy_pass http://takes; proxy_set_header X-Port $remote_port; proxy_set_header Connection "";
    }}
  }}
  server {{ listen 127.0.0.1:{responses}; location / {{ proxy_pass http://gives; }} }}
}}
"""


class _Taken(asyncio.Protocol):
    """A connection of nginx that brings the requests it has read."""

    def __init__(self, read):
        self._read, self._data = read, b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines)
            size = int(headers.get(b"Content-Length", 0))
            if len(rest) < size:
                return
            method, target = first.rsplit(b" ", 1)[0].split(b" ", 1)
            request = method, target, rest[:size]
            self._read.setdefault(int(headers[b"X-Port"]), []).append(request)
            self._data = rest[size:]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Nginx:
    """Run one nginx before a server that notes requests and one that sends cases' responses."""

    def __init__(self, folder):
        """Skip the test where nginx is missing; in CI fail."""
        if PROGRAM is None:
            (pytest.fail if "CI" in os.environ else pytest.skip)("nginx is not installed")
        self._folder, self._read, self._given = folder, {}, {}
        self._places = asyncio.Semaphore(CASES_AT_ONCE)

    async def __aenter__(self):
        names = "takes", "gives", "requests", "responses"
        self._ports = ports = dict(zip(names, free_ports(4), strict=True))
        loop = asyncio.get_running_loop()
        takes = await loop.create_server(lambda: _Taken(self._read), "127.0.0.1", ports["takes"])
        gives = await asyncio.start_server(self._give, "127.0.0.1", ports["gives"])
        self._servers = takes, gives
        settings = self._folder / "settings"
        settings.write_text(SETTINGS.format(folder=self._folder, **ports))
        self._process = await start_child(PROGRAM, "-c", str(settings))
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", ports["responses"])
                    writer.close()
                    return self
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_):
        self._process.terminate()
        await self._process.wait()
        for each in self._servers:
            each.close()

    async def _give(self, reader, writer):
        """Send the response that is asked for by its number, and close."""
        with contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            number = int(re.search(rb" /(\d+) ", head)[1])
            for piece in self._given[number].pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            await writer.drain()
            writer.close()

    async def _sent(self, port, pieces, *, ends):
        """Return what a connection on which the pieces are sent gets, and its own port."""
        async with self._places, asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            own = writer.get_extra_info("sockname")[1]
            answer = b""
            with contextlib.suppress(OSError):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if ends:
                    writer.write_eof()
                while data := await reader.read(1 << 16):
                    answer += data
            writer.transport.abort()
            return own, answer

    async def request(self, case):
        """Read a case's requests, of a client that half-closes its connection behind them."""
        own, answer = await self._sent(self._ports["requests"], case.pieces, ends=True)
        read = tuple(self._read.pop(own, ()))
        return read, REFUSED if re.search(rb"HTTP/1.1 [45]\d\d ", answer) else ""

    async def response(self, number, case):
        """Read a case's response, behind which the engine closes its connection."""
        self._given[number] = case
        asked = b"%b /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % (case.method, number)
        _, answer = await self._sent(self._ports["responses"], (asked,), ends=False)
        del self._given[number]
        found = Response()
        try:
            found.feed(answer)
        except httptools.HttpParserUpgrade:
            return reading(101, b"", "whole")
        except httptools.HttpParserError:  # HTTP/0.9: all that came is the body
            return reading(200, answer, "whole")
        if found.status in (502, 504):
            return reading(0, b"", REFUSED)
        is_whole = found.is_whole or case.method == b"HEAD"
        return reading(found.status, found.body, "whole" if is_whole else REFUSED)
