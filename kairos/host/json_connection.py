"""Short JSON requests to an HTTP server, each on its own connection."""

import contextlib
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from kairos.core import SetupError
from kairos.host.service_connection import check_url, connection_to, troubles_told

_TIMEOUT_S = 5.0
_SAID = 300  # characters of an answer that are shown
_MOST_BYTES = 16 << 20


class JsonServer:
    """An HTTP server, by its URL."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        """Create it. `context` is for https.

        Raises:
            SetupError: The URL is invalid.
        """
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
