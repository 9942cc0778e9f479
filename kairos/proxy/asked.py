"""The HTTP request of a call, and the headers that are forwarded: to the engine, and back.

To engines an allow list applies, which operators may extend (`pass_headers`). Back to clients all
headers pass except credentials, cookies, and headers that concern the connection, CORS or Kairos.
These never pass, in either direction, with any settings.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import msgspec

from kairos.core import RAW_HEADERS, Dispatch, Header, SetupError
from kairos.observe import CallTrace
from kairos.request import RouteRules, rules_of

_REQUEST_ID = Header.REQUEST_ID.encode() + b": "
# Some clients show their key in the URL, too (Google's). It is Kairos's, and engines log URLs.
_KEYS = {b"key", b"api_key", b"api-key", b"apikey", b"x-api-key", b"access_token", b"token"}
_BODILESS = ("GET", "DELETE")  # unless they bring a body
Headers = list[tuple[bytes, bytes]]  # names in lower case
_TO_ENGINE = (
    *(
        b"content-type",
        b"accept",
        RAW_HEADERS[Header.TRACE_PARENT],
        b"tracestate",
        RAW_HEADERS[Header.BAGGAGE],
        b"user-agent",
    ),
    *(b"anthropic-version", b"anthropic-beta", b"openai-beta"),
)
# Headers that never pass.
_NEVER = re.compile(
    r"connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|content-length|host|expect"
    r"|authorization|www-authenticate|x-api-key|api-key|.*cookie.*|access-control-.*|origin|server"
    r"|x-kairos-.*|x-request-id|.*priority.*|forwarded|x-forwarded-.*"
    r"|strict-transport-security|content-security-policy.*|x-frame-options|clear-site-data|alt-svc"
)
_USUAL = b"keep-alive", b"close"  # what stands in `Connection`
# By it a body is read here: an engine must not read it in another way.
_END_TO_END = {b"content-type"}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\*?")
_MOST_KNOWN = 256  # headers


class PassedHeaders:
    """Filter of forwarded headers, with an operator's additions."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        """Create the filter. A name that ends with `*` is a prefix.

        Raises:
            SetupError: A name is invalid, or must never pass.
        """
        names = [each.lower() for each in more]
        for name in names:
            if not _NAME.fullmatch(name) or name == "*" or _NEVER.fullmatch(name.rstrip("*")):
                raise SetupError(f"pass_headers: '{name[:100]}' cannot be passed on")
        self._more = _pattern(names)

    def to_engine(self, headers: dict[bytes, bytes]) -> Headers:
        """Return the headers of a client's request to forward. Names are in lower case."""
        passed = [(name, value) for name in _TO_ENGINE if (value := headers.get(name)) is not None]
        if self._more is not None:
            passed += [each for each in headers.items() if self._is_more(each[0])]
        connection = headers.get(b"connection")
        if connection is not None and connection.lower() not in _USUAL:
            named = {name.strip().lower() for name in connection.split(b",")} - _END_TO_END
            return [each for each in passed if each[0] not in named]
        return passed

    def to_client(self, headers: Headers) -> Headers:
        """Return the headers of an engine's answer to forward."""
        passed = [each for each in headers if not _is_never(each[0])]
        if len(passed) < len(headers):
            named = {
                name.strip().lower()
                for key, value in headers
                if key == b"connection"
                for name in value.split(b",")
            }
            if named:  # these belong to the connection, too
                return [each for each in passed if each[0] not in named]
        return passed

    def _is_more(self, name: bytes) -> bool:
        assert self._more is not None
        if name in _TO_ENGINE:
            return False
        return self._more.fullmatch(name) is not None and not _is_never(name)


@lru_cache(_MOST_KNOWN)  # names are the engine's to choose
def _is_never(name: bytes) -> bool:
    return _NEVER.fullmatch(name.decode("latin-1")) is not None


def _pattern(names: Sequence[str]) -> re.Pattern[bytes] | None:
    if not names:
        return None
    parts = (re.escape(name.rstrip("*")) + (".*" if name.endswith("*") else "") for name in names)
    return re.compile("|".join(parts).encode("ascii"), re.DOTALL)


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
