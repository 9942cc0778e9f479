"""HTTP servers that commands ask, with TLS files of their own: JSON, and whether they are well."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from kairos.core import SetupError
from kairos.settings import TlsFiles, check_pair, client_context, is_http_url

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 64 << 20
_OPERATORS_PORT = "the operators' port of a Kairos of this version"

_NAMES = {"certificate": "--tls-certificate", "key": "--tls-key"}
_Known = TypeVar("_Known")


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


class JsonServer:
    """An HTTP server, by its URL. Each request has a connection of its own."""

    def __init__(self, url: str, files: TlsFiles, timeout_s: float = _TIMEOUT_S) -> None:
        """Create it. Without `files.ca` an https server is checked by the system's authorities.

        Raises SetupError: The URL is malformed or has a password, a file cannot be used, or files
        are given for a URL without TLS.
        """
        if not is_http_url(url) or "@" in url:
            raise SetupError(f"'{url}' is not a URL like http://127.0.0.1:8001")
        self.url, self._context, self._timeout_s = url, _context_of(url, files), timeout_s
        self.path = urlsplit(url).path.rstrip("/")

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

        Raises SetupError: The answer is missing in time, has a status other than `good`, or is not
        JSON; the message quotes it, without the token.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        status, said = self._send(method, path, content, headers)
        if status not in good:
            raise SetupError(f"{self.url}: {method} {path} was answered {status}: {_quoted(said)}")
        try:
            return msgspec.json.decode(said)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SetupError(f"{self.url}: {path} was not answered in JSON") from None

    def read(
        self, path: str, kind: type[_Known], token: str | None, what: str = _OPERATORS_PORT
    ) -> _Known:
        """Return what is at a path. Raises SetupError, as `ask`, or if the server is not `what`."""
        answer = self.ask("GET", path, token=token)
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError:
            raise SetupError(f"{self.url} is not {what}") from None

    def check_health(self) -> str:
        """Request the URL, or its /health if it has no path. Return a message for the operator.

        Raises SetupError: It does not answer 200 in time; the message says what it does.
        """
        status, said = self._send("GET", "" if self.path else "/health", None, {})
        if status != 200:
            path = self.path or "/health"
            raise SetupError(f"{self.url}: {path} answered {status}: {_quoted(said)}")
        return f"{self.url} is well"

    def _send(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        with contextlib.closing(self._connection()) as connection, self._troubles_told():
            connection.request(method, self.path + path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST_BYTES)

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        where = parts.hostname, parts.port
        if self._context is None:
            return http.client.HTTPConnection(*where, timeout=self._timeout_s)
        return http.client.HTTPSConnection(*where, timeout=self._timeout_s, context=self._context)

    @contextlib.contextmanager
    def _troubles_told(self) -> Iterator[None]:
        """Raise SetupError for connection failures within the block."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise SetupError(
                f"{self.url}: its certificate is not accepted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise SetupError(f"{self.url}: {error or type(error).__name__}") from None


def path_segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe=":")


def _quoted(said: bytes) -> str:
    """Return the message of an error in OpenAI's format, or else the beginning of the answer."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(said, type=_Refusal).error.message[:_SAID]
    return said[:_SAID].decode(errors="replace")


def _context_of(url: str, files: TlsFiles) -> ssl.SSLContext | None:
    check_pair(files, _NAMES)
    if url.lower().startswith("https://"):
        return client_context(files)
    if files != TlsFiles():
        raise SetupError(f"{url} has no TLS: --tls-ca, --tls-certificate, --tls-key need https://")
    return None
