"""Parser of a client's requests: HTTP/1.1, with bounds on every unlimited part."""

import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

import httptools

from kairos.core import InvalidRequest
from kairos.gateway.server.exchange import Exchange
from kairos.request import OTHER_METHODS

if TYPE_CHECKING:
    from kairos.gateway.server.connection import Connection

# Of one request: target, names and values of headers and trailers. It also bounds data that
# completes no part of a request, such as an endless header.
_MAX_HEAD_BYTES = 1 << 16


class HeadTooLarge(Exception):
    """The head of a request is too large."""


class NoHttp(Exception):
    """The data is not valid HTTP."""


class OtherVersion(NoHttp):
    """A client speaks HTTP/2 without negotiation."""


class NotSpoken(InvalidRequest):
    """A request uses a protocol or a version of HTTP that Kairos does not support."""

    def __init__(self, status: int, code: str, message: str, allowed: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.allowed = status, code, allowed


_NO_WEBSOCKET = NotSpoken(
    426,
    "no_websocket",
    'WebSockets are not supported: use POST over HTTP/1.1, with "stream": true to stream',
)
_NO_TUNNEL = NotSpoken(
    405,
    "method_not_allowed",
    "this is not a proxy: remove it from the client's proxy settings (HTTP_PROXY, HTTPS_PROXY), "
    "and use its own URL",
    OTHER_METHODS,
)
_NO_VERSION = NotSpoken(
    505, "http_version", "only HTTP/1.1 and HTTP/1.0 are supported: let the client use HTTP/1.1"
)
_TWO_HOSTS = NotSpoken(400, "two_hosts", "a request must have one header Host, not several")
# A proxy in front may use the first header, and a server behind it the last.
_TWO_KEYS = NotSpoken(
    400, "two_authorizations", "a request must have one header Authorization, not several"
)
_NOTED = frozenset((b"host", b"expect", b"authorization", b"connection"))
_PREFACE = b"PRI"  # the method of what HTTP/2 begins with
_TUNNEL = b"CONNECT"
_VERSIONS = ("1.1", "1.0")


class RequestReader:
    """Parser of one connection's requests: `feed`, and the callbacks of the HTTP parser."""

    def __init__(self, taker: "Connection", targets: Mapping[bytes, str]) -> None:
        """Create the parser. `targets` maps common request targets to their paths."""
        self._taker, self._targets = taker, targets
        self._parser = self._new_parser()
        self._offer: bytes | None = None  # a head that offers another protocol, without the offer
        self._offers_websocket = False
        self.is_in_head = False
        self._coming: Exchange | None = None  # whose body comes
        self._pieces: list[bytes] = []  # of it, not handed on yet: a client may send single bytes
        self._url, self._head_bytes = b"", 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._hosts = self._authorizations = self._connections = 0  # headers of these names
        self._stood_still = False  # the request that comes, while what came was parsed
        self._stray_bytes = 0  # that came since it made a step

    def feed(self, data: bytes) -> None:
        """Parse data. Raises HeadTooLarge, NoHttp: The rest of the connection cannot be parsed."""
        self._stood_still = True
        try:
            self._parse(data)
            self._hand_on()
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadTooLarge):
                raise HeadTooLarge from None
            is_preface = self._parser.get_method() == _PREFACE
            raise (OtherVersion if is_preface else NoHttp) from None
        if self._stood_still:
            self._stray_bytes += len(data)
            if self._stray_bytes > _MAX_HEAD_BYTES:
                raise HeadTooLarge
        else:
            self._stray_bytes = 0

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # The first of two requests that came together may have said that it is the last.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _parse(self, data: bytes) -> None:
        """Parse all of the data.

        The parser ends a request at a head that offers another protocol. Offers are declined (RFC
        9110, 7.8): a new parser gets the same head without the offer, and then the rest.
        """
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as paused:
                head, self._offer = self._offer, None
                if head is None:  # of a tunnel
                    return
                rest = rest[paused.args[0] :]
                self._parser = self._new_parser()
                self._parser.feed_data(head)
            else:
                return

    def _note_offer(self, method: bytes) -> None:
        """Store a head that offers another protocol, without its offer."""
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name == b"upgrade":
                offered = [each.strip().lower() for each in value.split(b",")]
                self._offers_websocket |= method == b"GET" and b"websocket" in offered
            else:
                lines.append(b"%b: %b" % (name, value))
        head = b"\r\n".join(lines)
        if head.count(b"\r") != len(lines) - 1 or head.count(b"\n") != len(lines) - 1:
            raise NoHttp  # a folded header
        self._offer = head + b"\r\n\r\n"

    def drop_request(self) -> None:
        self._coming = None

    def release_parser(self) -> None:
        """Release the parser: the connection is closed."""
        del self._parser  # which names this reader

    def on_message_begin(self) -> None:
        self._url, self._head_bytes = b"", 0
        self._headers, self._expects_continue = [], False
        self._hosts = self._authorizations = self._connections = 0
        self.is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise HeadTooLarge
        name = name.lower()
        self._headers.append((name, value))
        if name in _NOTED:
            self._note_header(name, value)

    def _note_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"authorization":
            self._authorizations += 1
        elif name == b"connection":
            self._connections += 1
        elif value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._stood_still = self.is_in_head = False
        parser, taker = self._parser, self._taker
        method = parser.get_method()
        is_tunnel = method == _TUNNEL
        if parser.should_upgrade() and not is_tunnel:
            self._note_offer(method)
            return
        if self._connections > 1:
            self._headers = _with_one_connection(self._headers)
        exchange = Exchange(taker, method.decode("ascii"), self._headers, taker.caller)
        self._headers = []  # for trailers, of which nobody takes any
        if not is_tunnel:
            self._parse_target(exchange)
        version = parser.get_http_version()
        if version == "1.1":
            exchange.is_kept = parser.should_keep_alive()
            exchange.expects_continue = self._expects_continue
        else:  # it knows no chunks and no `100 Continue`
            exchange.http_version, exchange.is_kept = version, False
        is_odd = version not in _VERSIONS or self._hosts > 1 or self._authorizations > 1
        if is_odd or is_tunnel or self._offers_websocket:
            exchange.refused = self._refusal(is_tunnel=is_tunnel)
            exchange.is_kept = False
        self._coming = exchange
        taker.on_head(exchange)

    def _refusal(self, *, is_tunnel: bool) -> NotSpoken:
        offers, self._offers_websocket = self._offers_websocket, False
        if is_tunnel:
            return _NO_TUNNEL
        if offers:
            return _NO_WEBSOCKET
        if self._authorizations > 1:
            return _TWO_KEYS
        return _TWO_HOSTS if self._hosts > 1 else _NO_VERSION

    def _parse_target(self, exchange: Exchange) -> None:
        path = self._targets.get(self._url)
        if path is not None:
            exchange.path, exchange.raw_path = path, self._url
            return
        url = httptools.parse_url(self._url)
        exchange.raw_path, exchange.query = url.path, url.query or b""
        if url.host is not None:
            self._check_authority(exchange)
        path = url.path.decode("ascii")
        exchange.path = urllib.parse.unquote(path) if "%" in path else path

    def _check_authority(self, exchange: Exchange) -> None:
        """Refuse a request whose target is a URL with another host than its Host header."""
        authority = self._url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        hosts = [value for name, value in exchange.headers if name == b"host"]
        if not hosts:
            exchange.headers.append((b"host", authority))
        elif hosts[0].strip().lower() != authority.lower():
            self._hosts = 2

    def on_body(self, data: bytes) -> None:
        self._stood_still = False
        self._pieces.append(data)

    def _hand_on(self) -> None:
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if self._coming is not None:
                self._coming.on_body_chunk(data)

    def on_message_complete(self) -> None:
        self._stood_still = False
        self._hand_on()
        exchange, self._coming = self._coming, None
        if exchange is not None:
            exchange.on_body_end()


def _with_one_connection(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Join the `Connection` headers; each may name hop-by-hop headers."""
    named = b", ".join(value for name, value in headers if name == b"connection")
    others = [each for each in headers if each[0] != b"connection"]
    return [*others, (b"connection", named)]
