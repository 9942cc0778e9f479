"""Rules for web pages: origins that may send requests and read answers (CORS), hosts, and OPTIONS.

A port that requires no key admits only requests by known host names, since it relies on who
can reach it. A browser on this machine can, and a web page could make its own host name resolve to
this machine after loading (DNS rebinding): the browser then treats this port as the page's own
origin. The Host header reveals such a page, which cannot choose it. A request by an address instead
of a name cannot come from such a page.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from kairos.core import RAW_HEADERS, Header, InvalidRequest, KairosError
from kairos.gateway.auth.access import Callers
from kairos.gateway.server.exchange import Exchange
from kairos.observe import OnError
from kairos.request import CALL_METHODS, OTHER_METHODS
from kairos.settings import Settings

ANY_HOST = "*"
# A name or an address, and a port. What else stands in the header, a URL made of it would have for
# its path or its user.
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/?#@\[\]\\,]+))(?::\d{0,5})?")


_CALLS, _OTHERS = CALL_METHODS.encode(), OTHER_METHODS.encode()
_KEPT_S = b"600"  # a browser asks again only after that time
_EXPOSED = b"%b, %b, retry-after, " % (
    RAW_HEADERS[Header.REQUEST_ID],
    RAW_HEADERS[Header.REASON],
) + b", ".join(
    b"x-ratelimit-%b-%b" % (figure, of)
    for figure in (b"limit", b"remaining", b"reset")
    for of in (b"requests", b"tokens")
)
_NAMES = re.compile(rb"[A-Za-z0-9_-]{1,100}(\s*,\s*[A-Za-z0-9_-]{1,100}){0,99}")
ANY_ORIGIN = "*"
_SHOWN = 100  # characters
_PROBED = "/health"  # load balancers ask by any name, and read nothing but the status
_MOST_HOSTS = 256  # headers Host that are remembered


class UnknownHost(InvalidRequest):
    """A request used a host name that is not known to the port."""

    status = 421
    code = "unknown_host"

    def __init__(self, host: str, *, setting: str, what: str, also: str = "") -> None:
        """Create the error. `setting` would allow the name, `what` names the routes."""
        super().__init__(
            f"{what} are not known by the name {host[:_SHOWN]!r}: use an address, or add it to "
            f"the setting {setting}{also}"
        )


class HostNames:
    """Host names that are allowed, in addition to any address and names of this machine."""

    def __init__(self, names: Iterable[str]) -> None:
        """Create the set of names; `*` among them allows all."""
        self._names = {_plain(name) for name in (*names, *_own_names())}
        self._has_any = ANY_HOST in self._names

    def has(self, host: str) -> bool:
        """Return whether a request with this Host header is allowed."""
        if self._has_any:
            return True
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["ipv6"] or _plain(found["name"])
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _own_names() -> tuple[str, ...]:
    """Return the name of this machine, with and without its domain."""
    name = socket.gethostname()
    return (name, name.partition(".")[0]) if name else ()


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


class ForeignPage(KairosError):
    """A page of another origin sends a request while no key is required."""

    status = 403
    code = "foreign_origin"

    def __init__(self, origin: bytes) -> None:
        """Create the error. `origin` is as the browser sent it."""
        super().__init__(
            f"a web page of {origin.decode('latin-1')[:_SHOWN]!r} may not send requests while no "
            "API key is required: add its origin to the setting cors_origins, or create keys"
        )


class WebPages:
    """Allow pages of some origins to send requests and read answers. Cookies are never used.

    While no key is required, requests from pages of all other origins are refused, and so are
    requests by an unknown host name.
    """

    def __init__(
        self,
        origins: Sequence[str] = (),
        *,
        hosts: Iterable[str] = (ANY_HOST,),
        is_open: Callable[[], bool] = lambda: False,
        on_refused: OnError | None = None,
    ) -> None:
        """Create the rules.

        Args:
            origins: Allowed origins, as browsers send them; `*` allows all.
            hosts: Host names that requests may use while the port is open, in addition to
                addresses.
            is_open: Returns whether no key is required at the moment.
            on_refused: Receives each refusal.
        """
        self._origins = {each.lower().encode() for each in origins}
        self._has_any = ANY_ORIGIN in origins
        self._is_open, known = is_open, HostNames(hosts)
        self._knows = lru_cache(_MOST_HOSTS)(lambda host: known.has(host.decode("latin-1")))
        self._on_refused = on_refused

    def admit_page(self, exchange: Exchange) -> None:
        """Allow the requesting page to read the answer, or refuse its request, by its origin."""
        if exchange.refused is None and self._is_open() and exchange.path != _PROBED:
            exchange.refused = self._refusal(exchange)
            if exchange.refused is not None and self._on_refused is not None:
                self._on_refused(exchange.refused, None, exchange.caller)
        if not self._origins:
            return
        origin = next((value for name, value in exchange.headers if name == b"origin"), None)
        exchange.added = [(b"vary", b"Origin")]
        if origin is not None and self._is_named(origin):
            exchange.added += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED),
            ]

    def _is_named(self, origin: bytes) -> bool:
        return self._has_any or origin.lower() in self._origins

    def _refusal(self, exchange: Exchange) -> KairosError | None:
        host = origin = site = mode = None
        for name, value in exchange.headers:
            if name == b"host":
                host = value
            elif name == b"origin":
                if origin is not None and origin != value:
                    return ForeignPage(value)
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-mode":
                mode = value
        if host is not None and not self._knows(host):
            return UnknownHost(
                host.decode("latin-1"),
                setting="allowed_hosts",
                what="callers' routes",
                also=" (`*`: any), or give out API keys",
            )
        if origin:
            is_own = host is not None and origin.lower().partition(b"://")[2] == host.lower()
            return None if is_own or self._is_named(origin) else ForeignPage(origin)
        # Browsers leave out the origin where a page has them load a picture or a script.
        is_loaded = site == b"cross-site" and mode != b"navigate"
        return ForeignPage(b"another site") if is_loaded and not self._has_any else None

    def answer_options(self, exchange: Exchange, *, is_call: bool) -> None:
        """Answer OPTIONS without a key: browsers send none in a preflight."""
        methods = _CALLS if is_call else _OTHERS
        headers = [(b"allow", methods)]
        asked = dict(exchange.headers)
        if len(exchange.added) > 1 and b"access-control-request-method" in asked:
            headers.append((b"access-control-allow-methods", methods))
            headers.append((b"access-control-max-age", _KEPT_S))
            names = asked.get(b"access-control-request-headers", b"").strip()
            if _NAMES.fullmatch(names):
                headers.append((b"access-control-allow-headers", names))
            if b"access-control-request-private-network" in asked:
                headers.append((b"access-control-allow-private-network", b"true"))
        exchange.start(204, headers)
        exchange.write(b"", more=False)


def pages_of(settings: Settings, access: Callers, on_refused: OnError | None = None) -> WebPages:
    """Return the rules for web pages on the callers' port, from the settings."""
    return WebPages(
        settings.cors_origins,
        hosts=(*settings.allowed_hosts, settings.host),
        is_open=lambda: access.is_open,
        on_refused=on_refused,
    )
