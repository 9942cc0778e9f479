"""Address of Kairos, from the environment."""

import os
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


@lru_cache(maxsize=256)  # called for every request, with the same few URLs
def origin(url: str) -> Origin | None:
    """Return the origin of a URL; None: it is not the URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return Origin(parts.scheme, parts.hostname or "", port)


def base_url() -> str | None:
    """Return `KAIROS_BASE_URL`, else the base URL of the OpenAI SDK."""
    return os.environ.get("KAIROS_BASE_URL") or os.environ.get("OPENAI_BASE_URL")


def app() -> str | None:
    return os.environ.get("KAIROS_APP")


def api_key() -> str | None:
    return os.environ.get("KAIROS_API_KEY") or os.environ.get("OPENAI_API_KEY")
