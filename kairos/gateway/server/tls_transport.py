"""TLS between a client's socket and its connection.

The event loop's own TLS announces a client only after its handshake. Here a client counts among the
limits of connections from its first moment on, and has as long for handshake and first head as
others for the head alone (`connection_limits.py`). A handshake takes up to a millisecond of CPU
time, so the steps of several take turns, by address (`LoopPace`): thousands at once delay a call
no more than thousands of calls do.

The protocol itself is OpenSSL's (`ssl.SSLObject`) without a socket: received bytes are fed to it,
and its output is sent.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from kairos.core import InvalidRequest
from kairos.gateway.server.connection_limits import address_of, refusal
from kairos.host import LoopPace

_RECORD_BYTES = 1 << 14  # of the largest record


class HttpsNeeded(InvalidRequest):
    """A request came without TLS to a port that requires TLS."""

    code = "https_needed"
    says = "this port speaks TLS: the URL must begin with https://"


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """TLS layer: a protocol for the socket, and a transport for the connection."""

    _raw: asyncio.Transport  # once it is made

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        pace: LoopPace,
        on_failure: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Create the layer.

        `on_failure` receives the reason of a failed handshake, and the address.
        """
        super().__init__()
        self._protocol, self._pace, self._on_failure = protocol, pace, on_failure
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_secured = self._has_begun = self._waits = False
        self._is_ending = self._is_closing = False  # no more writes; no more reads either
        self._unsent: deque[bytes] = deque()  # written before the end of the handshake

    # What the socket tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._is_secured:
            self._incoming.write(data)
            self._read()
        elif not self._has_begun and data[:1].isalpha():  # TLS begins with 0x16
            self._on_failure("it spoke HTTP without TLS", self._address())
            self._raw.write(refusal(HttpsNeeded()))
            self._end()
        else:
            self._has_begun = True
            self._incoming.write(data)
            if self._pace.may_begin():
                self._step()
            elif not self._waits:
                self._waits = True
                self._raw.pause_reading()
                self._pace.wait((self._address(), "shakes hands"), self._step_later)

    def eof_received(self) -> bool | None:
        if self._is_secured and not self._is_closing:
            return self._protocol.eof_received()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._unsent.clear()
        protocol = self._protocol
        del self._protocol  # which names this transport
        protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # The handshake

    def _step_later(self) -> None:
        self._waits = False
        if not self._is_closing and not self._raw.is_closing():
            self._raw.resume_reading()
            self._step()

    def _step(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._on_failure(error.reason or str(error), self._address())
            self._flush()  # the alert that says why
            self._end()
        else:
            self._is_secured = True
            self._flush()
            while self._unsent:
                self._send(self._unsent.popleft())
            if self._is_ending:
                self._say_goodbye()
            if not self._is_closing:
                self._read()

    # What comes

    def _read(self) -> None:
        tls, pieces = self._tls, []
        has_ended = False
        try:
            while self._incoming.pending or tls.pending():
                piece = tls.read(_RECORD_BYTES)
                if not piece:  # it said that nothing more comes
                    has_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:  # the rest of a record comes later
            pass
        except ssl.SSLError:  # the data is not TLS, or was tampered with
            self._flush()
            self.abort()
            return
        if self._outgoing.pending:  # an answer of TLS's own, as to who would renegotiate
            self._flush()
        if pieces and not self._is_ending:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if has_ended and not self._is_closing and not self._protocol.eof_received():
            self.close()

    # What is said

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_ending or not data:
            return
        if self._is_secured:
            self._send(data)
        else:
            self._unsent.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for each in list_of_data:
            self.write(each)

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        tls = self._tls
        sent = tls.write(data)
        if sent < len(data):  # a record at a time
            rest = memoryview(data)
            while sent < len(rest):
                sent += tls.write(rest[sent:])
        self._raw.write(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def write_eof(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            if self._is_secured:
                self._say_goodbye()

    def can_write_eof(self) -> bool:
        return True

    def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the other side need not say it, too
            self._tls.unwrap()
        self._flush()

    def close(self) -> None:
        if self._is_closing:
            return
        if self._is_secured:
            self.write_eof()
        self._end()

    def _end(self) -> None:
        self._is_closing = self._is_ending = True
        self._raw.close()

    def abort(self) -> None:
        self._is_closing = self._is_ending = True
        self._raw.abort()

    # What else a transport has

    def is_closing(self) -> bool:
        return self._is_closing or self._raw.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing() and not self._waits:
            self._raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return self._raw.get_extra_info(name, default)

    def _address(self) -> str:
        return address_of(self._raw.get_extra_info("peername"))
