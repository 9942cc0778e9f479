"""Connections of commands to a running Kairos, with TLS files of their own."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from kairos.core import SetupError
from kairos.settings import TlsFiles, check_pair, client_context, is_http_url

_NAMES = {"certificate": "--tls-certificate", "key": "--tls-key"}


def context_of(url: str, files: TlsFiles) -> ssl.SSLContext | None:
    """Return the TLS context for https URLs; None for others.

    Without `files.ca`, the system's authorities are trusted.

    Raises:
        SetupError: A file cannot be used, or files are given for a URL without TLS.
    """
    check_pair(files, _NAMES)
    if url.lower().startswith("https://"):
        return client_context(files)
    if files != TlsFiles():
        raise SetupError(f"{url} has no TLS: --tls-ca, --tls-certificate, --tls-key need https://")
    return None


def check_url(url: str, example: str = "http://127.0.0.1:8001") -> None:
    """Check the URL of a server.

    Raises:
        SetupError: It is malformed, or contains a secret.
    """
    if not is_http_url(url) or "@" in url:
        raise SetupError(f"'{url}' is not a URL like {example}")


def connection_to(
    url: str, context: ssl.SSLContext | None, timeout_s: float
) -> http.client.HTTPConnection:
    """Return a connection that opens on its first request.

    `context`: from `context_of`, for https.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    where = parts.hostname, parts.port
    if context is None:
        return http.client.HTTPConnection(*where, timeout=timeout_s)
    return http.client.HTTPSConnection(*where, timeout=timeout_s, context=context)


@contextlib.contextmanager
def troubles_told(url: str) -> Iterator[None]:
    """Raise SetupError for connection failures within the block."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise SetupError(
            f"{url}: its certificate is not accepted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"{url}: {error or type(error).__name__}") from None
