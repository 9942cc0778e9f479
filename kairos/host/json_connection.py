"""Connections of commands to HTTP servers, with TLS files of their own, and JSON over them."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from kairos.core import SetupError
from kairos.settings import TlsFiles, check_pair, client_context, is_http_url

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 16 << 20

_NAMES = {"certificate": "--tls-certificate", "key": "--tls-key"}


class JsonServer:
    """An HTTP server, by its URL."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        """Create it. `context` is for https. Raises SetupError: The URL is invalid."""
        check_url(url)
        self.url, self._context = url, context
        self._path = urlsplit(url).path.rstrip("/")

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        token: str | None = None,
        content_type: str = "application/json",
        good: tuple[int, ...] = (200,),
    ) -> Any:
        """Return the answer's JSON.

        Raises:
            SetupError: The answer is missing after 5 s, has a status other than `good`, or is not
                JSON; the message quotes it, without the token.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        connection = connection_to(self.url, self._context, _TIMEOUT_S)
        with contextlib.closing(connection), troubles_told(self.url):
            connection.request(method, self._path + path, content, headers)
            answer = connection.getresponse()
            said = answer.read(_MOST_BYTES)
        if answer.status not in good:
            text = said[:_SAID].decode(errors="replace")
            raise SetupError(f"{self.url}: {method} {path} was answered {answer.status}: {text}")
        try:
            return msgspec.json.decode(said)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SetupError(f"{self.url}: {path} was not answered in JSON") from None


def path_segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe=":")


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
    """Check the URL of a server. Raises SetupError: It is malformed, or contains a secret."""
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
