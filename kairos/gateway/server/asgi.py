"""Answers to requests that are not calls, by an ASGI application, each in its own task."""

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

from kairos.gateway.server.exchange import Exchange
from kairos.gateway.server.openai_errors import INTERNAL_ERROR
from kairos.request import CLIENT_KEY, ASGIApp, Scope

logger = logging.getLogger(__name__)


class AsgiAnswer:
    """An exchange with an application: passes it the request, and takes its answer."""

    def __init__(self, exchange: Exchange, server: Any, client: Any, scheme: str = "http") -> None:
        """Create it. `server` and `client` are host and port."""
        self._exchange = exchange
        self._changed = asyncio.Event()
        self._has_all = False  # of the request's body
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": exchange.http_version,
            "server": server,
            "client": client,
            "scheme": scheme,
            "root_path": "",
            # The exchange leaves out the body that HEAD does not want.
            "method": "GET" if exchange.method == "HEAD" else exchange.method,
            "path": exchange.path,
            "raw_path": exchange.raw_path,
            "query_string": exchange.query,
            "headers": exchange.headers,
            "state": {},
            CLIENT_KEY: exchange,
        }

    async def run(self, app: ASGIApp) -> None:
        exchange = self._exchange
        exchange.answering = self
        try:
            await app(self._scope, self._receive, self._send)
        except Exception:  # the last resort
            logger.exception("an answer met an error of Kairos's own")
            if not exchange.is_started and not exchange.has_left:
                exchange.refuse(INTERNAL_ERROR)
        finally:
            exchange.cut_off()
            exchange.read_body_by(None)
            if exchange.answering is self:
                exchange.answering = None
            del self._scope[CLIENT_KEY]  # else both would wait for the garbage collector

    def client_left(self) -> None:
        self._changed.set()

    def client_drained(self) -> None:
        self._changed.set()

    def body_came(self) -> None:
        self._changed.set()

    async def _receive(self) -> MutableMapping[str, Any]:
        exchange = self._exchange
        exchange.read_body_by(self)
        while not exchange.has_left and not exchange.is_answered:
            body, is_whole = exchange.take_body()
            if body or (is_whole and not self._has_all):
                self._has_all = is_whole
                return {"type": "http.request", "body": body, "more_body": not is_whole}
            await self._change()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            exchange.start(message["status"], message["headers"])
            return
        exchange.write(message.get("body", b""), more=message.get("more_body", False))
        if exchange.is_answered:
            self._changed.set()
        while not exchange.keeps_up and not exchange.is_answered and not exchange.has_left:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
