"""HTTP/1.1 as a proxy must know it: where a request ends, and where an answer does."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import msgspec

HEAD_LIMIT_BYTES = 1 << 16
BODY_LIMIT_BYTES = 64 << 20
_PIECE_BYTES = 1 << 16
LAST_CHUNK = b"0\r\n\r\n"


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    raw: bytes  # as it came, head and body


async def read_request(first: bytes, reader: asyncio.StreamReader) -> Request:
    """One whole request, whose first byte has been read already.

    Raises:
        IncompleteReadError, OSError: the client left amid it.
        ValueError, LimitOverrunError: it is none, or too large.
    """
    head = first + await reader.readuntil(b"\r\n\r\n")
    start, headers = _parse(head)
    method, path, _ = start.split(" ")
    body = b""
    if "transfer-encoding" in headers:
        async for piece in _chunks(reader):
            body = _within_limit(body + piece)
    elif length := int(headers.get("content-length", 0)):
        if length > BODY_LIMIT_BYTES:
            raise ValueError("the body is too large")
        body = await reader.readexactly(length)
    return Request(method, path, headers, head + body)


async def answer_to(request: Request, engine: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The answer in pieces as they come, to its end.

    Raises:
        IncompleteReadError, OSError: the engine broke it off.
    """
    head = await engine.readuntil(b"\r\n\r\n")
    yield head
    start, headers = _parse(head)
    if request.method == "HEAD" or start.split(" ")[1] in ("204", "304"):
        return
    if "transfer-encoding" in headers:
        async for piece in _chunks(engine):
            yield piece
    elif "content-length" in headers:
        async for piece in _exactly(engine, int(headers["content-length"])):
            yield piece
    else:
        while piece := await engine.read(_PIECE_BYTES):
            yield piece


def is_chunked(head: bytes) -> bool:
    return "transfer-encoding" in _parse(head)[1]


def keeps_open(head: bytes) -> bool:
    """Whether the connection is there for another request after the answer of this head."""
    _, headers = _parse(head)
    has_end = "content-length" in headers or "transfer-encoding" in headers
    return has_end and headers.get("connection", "").lower() != "close"


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    start, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return start, {name.lower(): value.strip() for name, value in pairs}


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Each with its length and its end, so that they can be passed on as they are."""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size > _PIECE_BYTES:
            yield line
            async for piece in _exactly(reader, size + 2):
                yield piece
        else:
            yield line + await reader.readexactly(size + 2)
        if size == 0:
            return


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        yield piece


def _within_limit(body: bytes) -> bytes:
    if len(body) > BODY_LIMIT_BYTES:
        raise ValueError("the body is too large")
    return body
