"""Clients whose bytes a test writes, and what they are answered."""

import asyncio
import json
from contextlib import suppress

LIMIT_S = 60  # for anything that a test awaits


class Answer:
    """A whole HTTP answer. Headers that occur more than once are a list of that many values."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error, having checked that it is in OpenAI's format, or in Anthropic's."""
        assert self.status >= 400
        assert self.headers["x-request-id"]
        error = self.json()["error"]
        if self.json().get("type") == "error":
            assert {"message", "type"} <= error.keys() <= {"message", "type", "code"}
            assert self.headers["request-id"] == self.headers["x-request-id"]
        else:
            assert sorted(error) == ["code", "message", "param", "type"]
        assert "Traceback" not in error["message"]
        return error

    def is_refused(self, status, code):
        """Check that it says so, and why."""
        assert (self.status, self.error()["code"]) == (status, code)

    def is_to_be_retried(self, code):
        self.is_refused(503, code)
        assert self.headers["retry-after"] == "1"


class Wire:
    """A connection whose bytes are written by hand."""

    def __init__(self, reader, writer):
        self.reader, self._writer = reader, writer

    @property
    def descriptor(self):
        return self._writer.get_extra_info("socket").fileno()

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def post(self, path, body, *headers, method="POST"):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
        head = "\r\n".join([*lines, *headers]).encode("latin-1")
        await self.send(head + b"\r\n\r\n" + content)

    async def head(self):
        """Status and headers of the next answer, whose body is still to come."""
        async with asyncio.timeout(LIMIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:-2])
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self):
        status, headers = await self.head()
        async with asyncio.timeout(LIMIT_S):
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b"".join([chunk async for chunk in self.chunks()])
        return Answer(status, headers, body)

    async def chunks(self):
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    def half_close(self):
        self._writer.write_eof()

    def leave(self):
        """Close at once, unread answers or not."""
        self._writer.transport.abort()

    async def close(self):
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
