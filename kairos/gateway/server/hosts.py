"""Host names that requests to a port may use while it requires no key.

Such a port relies on who can reach it. A browser on this machine can, and a web page could make its
own host name resolve to this machine after loading (DNS rebinding): the browser then treats this
port as the page's own origin. The Host header reveals such a page, which cannot choose it. A
request by an address instead of a name cannot come from such a page.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from kairos.core import InvalidRequest

ANY_HOST = "*"
_SHOWN = 100  # characters
# A name or an address, and a port. What else stands in the header, a URL made of it would have for
# its path or its user.
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/?#@\[\]\\,]+))(?::\d{0,5})?")


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
