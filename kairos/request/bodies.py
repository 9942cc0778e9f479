"""Bodies of requests: bounded in size, each and in total, and in time; decompressed if needed."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Protocol

from kairos.core import (
    LONE_TENANT_SHARE,
    BodyTooLarge,
    BodyTooSlow,
    InvalidRequest,
    KairosError,
    ShareUsed,
    TooMuchHeld,
    is_within_share,
)
from kairos.request.client_response import ClientResponse
from kairos.request.identity.identity import Headers

# The longest silence in a body; and its minimum rate beyond that time, so that a trickle of bytes
# cannot hold a connection for ever.
SILENCE_S, LEAST_BYTES_PER_S = 60.0, 1024
_GZIP = 16 + zlib.MAX_WBITS
_ENCODINGS = b"identity", b"gzip", b"x-gzip", b"zstd"
_ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: more memory than this no encoder may ask for
_ZSTD_PIECE_BYTES = 1 << 10  # unpacked at once: becomes 32 MiB at most


class EncodingNotSupported(InvalidRequest):
    """The body's compression is not supported."""

    status = 415
    code = "unsupported_encoding"


class BodySource(Protocol):
    def take_body(self) -> tuple[bytes, bool]:
        """Return the data since the last call, and whether the body is complete."""

    def read_body_by(self, reader: "BodyReader | None") -> None:
        """Register a reader. It is called when more data or the end has arrived.

        If there is data already, it is called immediately.
        """


class BodyReader(Protocol):
    def body_came(self) -> None: ...


class BodyTaker(Protocol):
    def on_body(self, content: bytes) -> None:
        """Take the complete, decompressed body."""

    def on_body_refused(self, error: KairosError) -> None:
        """Take the error of a refused body.

        BodyTooLarge, BodyTooSlow, TooMuchHeld or ShareUsed; EncodingNotSupported or InvalidRequest
        if it cannot be decompressed.
        """


class Bodies:
    """Counter of the bytes that calls in flight hold, in total and per caller."""

    def __init__(
        self, max_bytes: int, max_held_bytes: int, share: float = LONE_TENANT_SHARE
    ) -> None:
        """Create the counter. For `share` see `fair_share.py`."""
        self.max_bytes, self.max_held_bytes, self._share = max_bytes, max_held_bytes, share
        self._held_bytes = 0
        self._held_by: dict[str, int] = {}  # caller

    def read_body(
        self, headers: Headers, source: BodySource, response: ClientResponse, taker: BodyTaker
    ) -> "Upload | None":
        """Pass the whole body to `taker`, immediately or once it has arrived.

        Return the upload to stop if the client leaves before that.

        Raises:
            KairosError: As in `BodyTaker.refused`.
        """
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            raise BodyTooLarge(self.max_bytes)
        encoding = headers.get(b"content-encoding")
        if encoding is None:
            encoding = b"identity"
        elif (encoding := encoding.strip().lower()) not in _ENCODINGS:
            raise EncodingNotSupported("bodies may be uncompressed, or compressed by gzip or zstd")
        content, is_whole = source.take_body()
        self.hold_bytes(len(content), response)
        if is_whole and encoding == b"identity":
            taker.on_body(content)
            return None
        return Upload(self, source, response, taker, content, _UNPACKING.get(encoding))

    def hold_bytes(self, size: int, response: ClientResponse) -> None:
        """Count bytes of a body.

        Raises:
            BodyTooLarge, TooMuchHeld, ShareUsed: A limit is exceeded.
        """
        self.hold_unpacked(size, response)
        if response.held_bytes > self.max_bytes:
            raise BodyTooLarge(self.max_bytes)

    def hold_unpacked(self, size: int, response: ClientResponse) -> None:
        """Count decompressed bytes, in addition to the compressed ones.

        Raises:
            TooMuchHeld, ShareUsed: A limit is exceeded.
        """
        response.held_bytes += size
        self._held_bytes += size
        callers = self._held_by.get(response.caller, 0) + size
        self._held_by[response.caller] = callers
        free = self.max_held_bytes - self._held_bytes
        if free < 0:
            raise TooMuchHeld(self.max_held_bytes)
        # Of its other calls: one that is alone may be as large as there is room.
        if not is_within_share(callers - response.held_bytes, free, self._share):
            raise ShareUsed(f"has {callers >> 20} MiB of bodies in flight")

    def release_bytes(self, response: ClientResponse) -> None:
        """Release the bytes of a call. Repeated calls do nothing."""
        held, response.held_bytes = response.held_bytes, 0
        self._held_bytes -= held
        left = self._held_by.pop(response.caller, 0) - held
        if left:
            self._held_by[response.caller] = left


class Upload:
    """A body that is incomplete, or compressed."""

    def __init__(
        self,
        bodies: Bodies,
        source: BodySource,
        response: ClientResponse,
        taker: BodyTaker,
        content: bytes,
        unpack: "Unpack | None",
    ) -> None:
        self._bodies, self._source, self._response, self._taker = bodies, source, response, taker
        self._unpack = unpack
        self._parts = [content]
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._began_at = self._latest_at = self._loop.time()
        self._size = len(content)
        self._timer = self._loop.call_later(SILENCE_S, self._check_pace)
        source.read_body_by(self)

    def _check_pace(self) -> None:
        steady_until = self._began_at + SILENCE_S + self._size / LEAST_BYTES_PER_S
        due_at = min(self._latest_at + SILENCE_S, steady_until)
        if self._loop.time() < due_at:
            self._timer = self._loop.call_at(due_at, self._check_pace)
        else:
            self._refuse(BodyTooSlow(SILENCE_S, LEAST_BYTES_PER_S))

    def body_came(self) -> None:
        part, is_whole = self._source.take_body()
        self._parts.append(part)
        self._size += len(part)
        self._latest_at = self._loop.time()
        try:
            self._bodies.hold_bytes(len(part), self._response)
        except KairosError as error:
            self._refuse(error)
            return
        if not is_whole:
            return
        self._timer.cancel()
        self._source.read_body_by(None)
        content = b"".join(self._parts)
        self._parts.clear()
        if self._unpack is None:
            self._taker.on_body(content)
            return
        unpacking = self._loop.run_in_executor(None, self._unpack, content, self._bodies.max_bytes)
        unpacking.add_done_callback(self._unpacked)

    def stop_reading(self) -> None:
        """Stop reading: the body is not needed any more."""
        self._is_over = True
        self._parts.clear()
        self._timer.cancel()
        self._source.read_body_by(None)

    def _refuse(self, error: KairosError) -> None:
        self.stop_reading()
        self._taker.on_body_refused(error)

    def _unpacked(self, unpacking: asyncio.Future[bytes]) -> None:
        if self._is_over or unpacking.cancelled():
            return
        failed = unpacking.exception()
        if isinstance(failed, KairosError):  # not raised here, where a frame has its future
            self._refuse(failed)
            return
        content = unpacking.result()
        try:
            self._bodies.hold_unpacked(len(content), self._response)
        except KairosError as error:
            self._refuse(error)
        else:
            self._taker.on_body(content)


def _gunzipped(content: bytes, max_bytes: int) -> bytes:
    """Decompress a body of at most `max_bytes`.

    Raises:
        BodyTooLarge: The result is larger.
        InvalidRequest: The body is not gzip, is cut off, or has trailing data.
    """
    unpacking = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacking.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is declared as gzip, but is not: {error}") from None
    if len(unpacked) > max_bytes:
        raise BodyTooLarge(max_bytes)
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidRequest("the body is declared as gzip, but is cut off or has trailing data")
    return unpacked


def _unpacked_zstd(content: bytes, max_bytes: int) -> bytes:
    """Decompress a body of zstd as `_gunzipped` does."""
    import zstandard  # most clients compress nothing

    unpacking = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
    unpacked, at = bytearray(), 0
    try:
        while at < len(content) and not unpacking.eof and len(unpacked) <= max_bytes:
            unpacked += unpacking.decompress(content[at : at + _ZSTD_PIECE_BYTES])
            at += _ZSTD_PIECE_BYTES
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"the body is declared as zstd, but is not: {error}") from None
    if len(unpacked) > max_bytes:
        raise BodyTooLarge(max_bytes)
    if not unpacking.eof or unpacking.unused_data or at < len(content):
        raise InvalidRequest("the body is declared as zstd, but is cut off or has trailing data")
    return bytes(unpacked)


Unpack = Callable[[bytes, int], bytes]
_UNPACKING: dict[bytes, Unpack] = {
    b"gzip": _gunzipped,
    b"x-gzip": _gunzipped,
    b"zstd": _unpacked_zstd,
}
