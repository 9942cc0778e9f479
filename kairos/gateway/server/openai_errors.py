"""Errors in the format of OpenAI's API, and ids of responses."""

import json
import os
from collections.abc import Iterable
from typing import Any

from kairos.core import RAW_HEADERS, Header, KairosError
from kairos.request import Scope, Send, error_body, error_headers

INTERNAL_ERROR = KairosError("internal error; the server's log has more")
REQUEST_ID = RAW_HEADERS[Header.REQUEST_ID]


def new_id() -> str:
    return f"req-{os.urandom(16).hex()}"


def whole_error(error: KairosError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers of an answer that is an error, with its id and length, and its body."""
    body = json.dumps(error_body(error)).encode()
    length = (b"content-length", b"%d" % len(body))
    return [*error_headers(error), length, (REQUEST_ID, new_id().encode())], body


async def send_error(error: KairosError, send: Send, *more: tuple[bytes, bytes]) -> None:
    """Send an error. `more` are additional headers."""
    headers, body = whole_error(error)
    await _send(send, error.status, [*headers, *more], body)


async def send_whole(
    send: Send, status: int, content: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    length = (b"content-length", b"%d" % len(content))
    await _send(send, status, [length, *headers], content)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def client_host(scope: Scope) -> str | None:
    client: Any = scope["client"]
    return None if client is None else client[0]
