"""Short questions in JSON to an HTTP server, each on a connection of its own."""

import http.client
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from kairos.engine_settings import is_http_url
from kairos.errors import SetupError

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 16 << 20


class JsonServer:
    """One server, by its URL."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        """`context`: for https. Raises SetupError: it is no URL of a server."""
        if not is_http_url(url) or "@" in url:
            raise SetupError(f"'{url}' is no URL such as http://127.0.0.1:8001")
        self.url, self._parts, self._context = url, urlsplit(url), context

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
        """The answer's JSON.

        Raises:
            SetupError: it is not answered in 5 s, or not with a status of `good` and with JSON; the
                message says what came instead. The token is not in it.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        connection = self._connection()
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, content, headers)
            answer = connection.getresponse()
            said = answer.read(_MOST_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise SetupError(
                f"{self.url}: its certificate is not accepted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise SetupError(f"{self.url}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if answer.status not in good:
            text = said[:_SAID].decode(errors="replace")
            raise SetupError(f"{self.url}: {method} {path} was answered {answer.status}: {text}")
        try:
            return msgspec.json.decode(said)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SetupError(f"{self.url}: {path} was not answered in JSON") from None

    def _connection(self) -> http.client.HTTPConnection:
        assert self._parts.hostname is not None
        where = self._parts.hostname, self._parts.port
        if self._context is None:
            return http.client.HTTPConnection(*where, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(*where, timeout=_TIMEOUT_S, context=self._context)


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe=":")
