"""By which names the operators' routes may be asked.

They ask for no key, since only who is on this machine reaches them. A browser on it is, too, and a
web page could have its own name lead here once it is loaded (DNS rebinding): to the browser all of
this is then the page's own. What gives it away is the name in the request, which it cannot choose.
An address is no name, so whoever comes by one is no such page.
"""

import ipaddress
from collections.abc import Iterable

from kairos.errors import InvalidRequest
from kairos.live.frontend.openai_errors import send_error
from kairos.live.request.client_response import ASGIApp, Receive, Scope, Send

_SHOWN = 100  # characters


class UnknownHost(InvalidRequest):
    """A request for the operators' routes came by a name that is not known to be theirs."""

    status = 421
    code = "unknown_host"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the operators' routes are not known by the name {host[:_SHOWN]!r}: ask by an "
            "address, or name it in the setting admin_hosts"
        )


class KnownHosts:
    """Lets requests through that come by an address, a name of this machine alone, or one of
    `names`. Without a name comes no browser."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {_plain(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for header, value in scope["headers"]:
            if header != b"host":
                continue
            host = value.decode("latin-1")
            if not self._is_known(_name_of(host)):
                await send_error(UnknownHost(host), send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """Without a port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return _plain(host.partition(":")[0])


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
