"""Errors in the format of OpenAI's API, and ids of responses."""

import json
import os
from collections.abc import Iterable, MutableMapping
from typing import Any

from kairos.core import RAW_HEADERS, Header, KairosError
from kairos.request import ASGIApp, Receive, Scope, Send, error_body, error_headers

INTERNAL_ERROR = KairosError("internal error; the server's log has more")
_REQUEST_ID = RAW_HEADERS[Header.REQUEST_ID]


def new_id() -> str:
    return f"req-{os.urandom(16).hex()}"


async def send_error(error: KairosError, send: Send, *more: tuple[bytes, bytes]) -> None:
    """Send an error in OpenAI's format. `more` are additional headers."""
    content = json.dumps(error_body(error), separators=(",", ":")).encode()
    await send_whole(send, error.status, content, (*error_headers(error), *more))


async def send_whole(
    send: Send, status: int, content: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(content))
    start = {"type": "http.response.start", "status": status, "headers": [length, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": content})


class RequestIds:
    """Middleware that gives every response without one an `x-request-id`; calls set their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if not any(name == _REQUEST_ID for name, _ in headers):
                    headers.append((_REQUEST_ID, new_id().encode()))
            await send(message)

        await self._app(scope, receive, send_named)
