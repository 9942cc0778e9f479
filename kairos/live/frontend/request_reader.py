"""What comes on a client's connection, as requests: HTTP/1.1, bounded where it has no end."""

import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

import httptools

from kairos.live.frontend.exchange import Exchange

if TYPE_CHECKING:
    from kairos.live.frontend.connection import Connection

# Of one request: target, names and values of headers and trailers. So much may also come between
# two steps of a request that is not a part of any, such as a header without end.
_MAX_HEAD_BYTES = 1 << 16


class HeadTooLarge(Exception):
    """Of a request."""


class NoHttp(Exception):
    """What came."""


class RequestReader:
    """Of one connection. `feed`, and the callbacks of the parser."""

    def __init__(self, taker: "Connection", targets: Mapping[bytes, str]) -> None:
        """`targets`: paths, by targets as they are sent, that need no further look."""
        self._taker, self._targets = taker, targets
        self._parser = httptools.HttpRequestParser(self)
        # The first of two requests that came together may have said that it is the last.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.is_in_head = False
        self._coming: Exchange | None = None  # whose body comes
        self._url, self._head_bytes = b"", 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._stood_still = False  # the request that comes, while what came was parsed
        self._stray_bytes = 0  # that came since it made a step

    def feed(self, data: bytes) -> None:
        """Raises HeadTooLarge, NoHttp: nothing that follows can be read."""
        self._stood_still = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to no other protocol: it is answered as it is
        except httptools.HttpParserError as error:
            is_too_large = isinstance(error.__context__, HeadTooLarge)
            raise (HeadTooLarge if is_too_large else NoHttp) from None
        if self._stood_still:
            self._stray_bytes += len(data)
            if self._stray_bytes > _MAX_HEAD_BYTES:
                raise HeadTooLarge
        else:
            self._stray_bytes = 0

    def drop(self) -> None:
        """Nobody takes what comes still of the request."""
        self._coming = None

    def end(self) -> None:
        """Nothing comes any more."""
        del self._parser  # which names this reader

    def on_message_begin(self) -> None:
        self._url, self._head_bytes = b"", 0
        self._headers, self._expects_continue = [], False
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
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._stood_still = self.is_in_head = False
        parser, taker = self._parser, self._taker
        method = parser.get_method().decode("ascii")
        exchange = Exchange(taker, method, self._headers, taker.caller)
        self._headers = []  # for trailers, of which nobody takes any
        self._find(exchange)
        exchange.http_version = parser.get_http_version()
        exchange.is_kept = exchange.http_version != "1.0" and parser.should_keep_alive()
        if self._expects_continue:
            exchange.expect_continue()
        self._coming = exchange
        taker.head_came(exchange)

    def _find(self, exchange: Exchange) -> None:
        path = self._targets.get(self._url)
        if path is not None:
            exchange.path, exchange.raw_path = path, self._url
            return
        url = httptools.parse_url(self._url)
        exchange.raw_path, exchange.query = url.path, url.query or b""
        path = url.path.decode("ascii")
        exchange.path = urllib.parse.unquote(path) if "%" in path else path

    def on_body(self, data: bytes) -> None:
        self._stood_still = False
        if self._coming is not None:
            self._coming.body_came(data)

    def on_message_complete(self) -> None:
        self._stood_still = False
        exchange, self._coming = self._coming, None
        if exchange is not None:
            exchange.body_ended()
