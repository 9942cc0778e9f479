"""The HTTP request of a call, and its headers for the engine."""

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from kairos.core import Dispatch, Header
from kairos.observe import CallTrace
from kairos.proxy.passed_headers import PassedHeaders
from kairos.request import RouteRules, rules_of

_REQUEST_ID = Header.REQUEST_ID.encode() + b": "
# Some clients show their key in the URL, too (Google's). It is Kairos's, and engines log URLs.
_KEYS = {b"key", b"api_key", b"api-key", b"apikey", b"x-api-key", b"access_token", b"token"}
_BODILESS = ("GET", "DELETE")  # unless they bring a body


class Asked(msgspec.Struct):
    """The HTTP request, but for its body."""

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]  # names in lower case
    trace: CallTrace | None = None  # that records the call

    @property
    def rules(self) -> RouteRules:
        """Rules of the request's route."""
        return rules_of(self.method, self.path)

    @property
    def passed_query(self) -> bytes:
        """The query without a caller's key."""
        if not self.query:
            return b""
        parts = self.query.split(b"&")
        return b"&".join(each for each in parts if _name_of(each) not in _KEYS)

    def sent(self, dispatch: Dispatch) -> None:
        """Record a dispatch.

        Where the call is traced, its headers then name this attempt's span.
        """
        if self.trace is not None:
            self.trace.record_dispatch(dispatch, self.headers)


def _name_of(part: bytes) -> bytes:
    return unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" ")).strip().lower()


def request_head(
    beginning: bytes,
    asked: Asked,
    request_id: bytes,
    priority_line: bytes | None,
    size: int,
    passed: PassedHeaders,
) -> bytes:
    """Return the head of the request to an engine, before a body of `size` bytes.

    `beginning` has its first lines; `priority_line` is as in `Upstream`.

    Raises:
        ValueError: A header contains a line break.
    """
    lines = [_REQUEST_ID + request_id]
    lines += [b"%b: %b" % each for each in passed.to_engine(asked.headers)]
    if priority_line is not None:
        lines.append(priority_line)
    if size or asked.method not in _BODILESS:
        lines.append(b"Content-Length: %d" % size)
    return beginning + header_lines(lines) + b"\r\n"


def header_lines(lines: Sequence[bytes]) -> bytes:
    """Return the lines of a head. Raises ValueError: A line contains a line break."""
    text = b"\r\n".join(lines) + b"\r\n"
    if text.count(b"\r") != len(lines) or text.count(b"\n") != len(lines) or b"\0" in text:
        raise ValueError("a header has a line break in it")
    return text
