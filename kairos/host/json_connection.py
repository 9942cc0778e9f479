"""Short questions in JSON to an HTTP server, each on a connection of its own."""

import contextlib
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from kairos.core.errors import SetupError
from kairos.host.service_connection import check_url, connection_to, troubles_told

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 16 << 20


class JsonServer:
    """One server, by its URL."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        """`context`: for https. Raises SetupError: it is no URL of a server."""
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


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe=":")
