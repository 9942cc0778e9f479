"""Names by which a port may be asked while it asks for no key.

Such a port relies on who can reach it. A browser on this machine can, and a web page could have its
own name lead here once it is loaded (DNS rebinding): to the browser all of this is then the page's
own. What gives the page away is the name in the request, which it cannot choose. An address is no
name, so a request that comes by one is from no such page.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from kairos.core.errors import InvalidRequest
from kairos.gateway.server.openai_errors import send_error
from kairos.observe.audit_log import AuditLog
from kairos.request.client_response import ASGIApp, Receive, Scope, Send

ANY_HOST = "*"
_SHOWN = 100  # characters
# A name or an address, and a port. What else stands in the header, a URL made of it would have for
# its path or its user.
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/?#@\[\]\\,]+))(?::\d{0,5})?")


class UnknownHost(InvalidRequest):
    """A request came by a name by which the port may not be asked."""

    status = 421
    code = "unknown_host"

    def __init__(self, host: str, *, setting: str, what: str, also: str = "") -> None:
        """Name the setting that would let the request in, and the routes that were asked for."""
        super().__init__(
            f"{what} are not known by the name {host[:_SHOWN]!r}: ask by an address, or name it in "
            f"the setting {setting}{also}"
        )


class HostNames:
    """Names by which a port may be asked, in addition to any address and names of this machine."""

    def __init__(self, names: Iterable[str]) -> None:
        """`*` among the names: by any."""
        self._names = {_plain(name) for name in (*names, *_own_names())}
        self._has_any = ANY_HOST in self._names

    def has(self, host: str) -> bool:
        """Return whether a request with this header Host may be answered."""
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


class KnownHosts:
    """Let requests for operators' routes pass that come by a known name.

    A request without a name is from no browser.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], audit: AuditLog | None = None) -> None:
        """Let requests by these names pass. `audit`: receives the refusals."""
        self._app, self._audit = app, audit
        self._names = HostNames(name for name in names if name != ANY_HOST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for header, value in scope["headers"]:
            if header != b"host":
                continue
            host = value.decode("latin-1")
            if not self._names.has(host):
                error = UnknownHost(host, setting="admin_hosts", what="the operators' routes")
                if self._audit is not None:
                    client = scope["client"]
                    self._audit.refused(error, None, client and client[0], "operators")
                await send_error(error, send)
                return
        await self._app(scope, receive, send)


def _own_names() -> tuple[str, ...]:
    """Return the name of this machine, with and without its domain."""
    name = socket.gethostname()
    return (name, name.partition(".")[0]) if name else ()


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
