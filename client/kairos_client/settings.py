"""Where Kairos is, as the environment says."""

import os
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


@lru_cache(maxsize=256)  # it is asked for every call, of the same few
def origin(url: str) -> Origin | None:
    """None: it is no URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return Origin(parts.scheme, parts.hostname or "", port)


def base_url() -> str | None:
    """`KAIROS_BASE_URL`; without it, where the OpenAI SDK calls."""
    return os.environ.get("KAIROS_BASE_URL") or os.environ.get("OPENAI_BASE_URL")


def app() -> str | None:
    return os.environ.get("KAIROS_APP")


def api_key() -> str | None:
    return os.environ.get("KAIROS_API_KEY") or os.environ.get("OPENAI_API_KEY")
