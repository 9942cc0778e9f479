"""How commands reach a running Kairos: over TLS with files of their own, where they are named."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from kairos.core.errors import SetupError
from kairos.settings.engines import is_http_url
from kairos.settings.tls import TlsFiles, check_pair, client_context

_NAMES = {"certificate": "--tls-certificate", "key": "--tls-key"}


def context_of(url: str, files: TlsFiles) -> ssl.SSLContext | None:
    """For https URLs; None for others. Without `files.ca`, authorities of the system count.

    Raises:
        SetupError: a file cannot be used, or would not be, since the URL has no TLS.
    """
    check_pair(files, _NAMES)
    if url.lower().startswith("https://"):
        return client_context(files)
    if files != TlsFiles():
        raise SetupError(f"{url} has no TLS: --tls-ca, --tls-certificate, --tls-key need https://")
    return None


def check_url(url: str, example: str = "http://127.0.0.1:8001") -> None:
    """Raises SetupError: it is no URL of a server, or has a secret in it."""
    if not is_http_url(url) or "@" in url:
        raise SetupError(f"'{url}' is no URL such as {example}")


def connection_to(
    url: str, context: ssl.SSLContext | None, timeout_s: float
) -> http.client.HTTPConnection:
    """One that is opened when it is asked. `context`: of https URLs, as `context_of` gives it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    where = parts.hostname, parts.port
    if context is None:
        return http.client.HTTPConnection(*where, timeout=timeout_s)
    return http.client.HTTPSConnection(*where, timeout=timeout_s, context=context)


@contextlib.contextmanager
def troubles_told(url: str) -> Iterator[None]:
    """Raises SetupError, in place of what fails within on the way to the URL."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise SetupError(
            f"{url}: its certificate is not accepted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"{url}: {error or type(error).__name__}") from None
