"""Headers that are forwarded: from a client's request to the engine, and from its answer back.

To engines an allow list applies, which operators may extend (`pass_headers`). Back to clients all
headers pass except credentials, cookies, and headers that concern the connection, CORS or Kairos.
These never pass, in either direction, with any settings.
"""

import re
from collections.abc import Sequence

from kairos.core import RAW_HEADERS, Header, SetupError

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
        self._kept_back: dict[bytes, bool] = {}  # by name of an engine's header

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
        passed = [each for each in headers if not self._is_kept_back(each[0])]
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

    def _is_kept_back(self, name: bytes) -> bool:
        known = self._kept_back.get(name)
        if known is None:
            known = _is_never(name)
            if len(self._kept_back) < _MOST_KNOWN:  # names are the engine's to choose
                self._kept_back[name] = known
        return known


_MOST_KNOWN = 256


def _is_never(name: bytes) -> bool:
    return _NEVER.fullmatch(name.decode("latin-1")) is not None


def _pattern(names: Sequence[str]) -> re.Pattern[bytes] | None:
    if not names:
        return None
    parts = (re.escape(name.rstrip("*")) + (".*" if name.endswith("*") else "") for name in names)
    return re.compile("|".join(parts).encode("ascii"), re.DOTALL)
