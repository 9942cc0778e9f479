"""Where something may listen, or be asked."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def problem_of(url: str) -> str | None:
    """Why what is fetched from there could not be trusted, as a sentence about it; None: it can.

    Over plain HTTP whoever is on the way could exchange it, so that is for loopback alone.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        return "is no URL (https://HOST/...)"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "may have no user, password or fragment"
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return "must begin with https://, as whoever is on the way could exchange what is fetched"
    return None
