"""Addresses for listening and for outgoing requests."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def problem_of(url: str) -> str | None:
    """Return why an answer from the URL could not be trusted; None: it can.

    Over plain HTTP it could be modified on the way, so that is allowed on loopback only.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        return "is not a URL (https://HOST/...)"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "may have no user, password or fragment"
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return "must begin with https://, as the answer could be modified on the way otherwise"
    return None
