"""The bodies of requests: bounded in size, each and all together, and in the time they take to
come; unpacked where they come compressed."""

import asyncio
import zlib

from kairos.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, TooMuchHeld
from kairos.live.request.client_response import ClientResponse, Receive
from kairos.live.request.identity.identity import Headers

TIMEOUT_S = 60.0
_GZIP = 16 + zlib.MAX_WBITS


class EncodingNotSupported(InvalidRequest):
    status = 415
    code = "unsupported_encoding"


class Bodies:
    """Counts what calls in flight hold, until they are told to have ended."""

    def __init__(self, max_bytes: int, max_held_bytes: int) -> None:
        self.max_bytes, self.max_held_bytes = max_bytes, max_held_bytes
        self._held_bytes = 0

    async def read(
        self, headers: Headers, receive: Receive, exchange: ClientResponse
    ) -> bytes | None:
        """The whole body; None if the client left before it was here.

        Raises:
            BodyTooLarge, BodyTooSlow, TooMuchHeld: as they say.
            EncodingNotSupported, InvalidRequest: it cannot be unpacked.
        """
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            raise BodyTooLarge(self.max_bytes)
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b"gzip", b"x-gzip"):
            raise EncodingNotSupported("bodies come as they are, or compressed by gzip")
        content = exchange.take_body()
        if content is None:
            content = await self._receive(receive, exchange)
        else:
            self._hold(len(content), exchange)
            if len(content) > self.max_bytes:
                raise BodyTooLarge(self.max_bytes)
        if content is None or encoding == b"identity":
            return content
        unpacked = await asyncio.to_thread(_unpacked, content, self.max_bytes)
        self._hold(len(unpacked), exchange)
        return unpacked

    def end(self, exchange: ClientResponse) -> None:
        self._held_bytes -= exchange.held_bytes

    async def _receive(self, receive: Receive, exchange: ClientResponse) -> bytes | None:
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    self._hold(len(parts[-1]), exchange)
                    if exchange.held_bytes > self.max_bytes:
                        raise BodyTooLarge(self.max_bytes)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise BodyTooSlow(TIMEOUT_S) from None
        return None

    def _hold(self, size: int, exchange: ClientResponse) -> None:
        exchange.held_bytes += size
        self._held_bytes += size
        if self._held_bytes > self.max_held_bytes:
            raise TooMuchHeld(self.max_held_bytes)


def _unpacked(content: bytes, max_bytes: int) -> bytes:
    """What is larger than it may be is not unpacked to its end."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacking.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is said to be gzip, but is not: {error}") from None
    if len(unpacked) > max_bytes:
        raise BodyTooLarge(max_bytes)
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidRequest("the body is said to be gzip, but does not end where that does")
    return unpacked
