"""Requests to engines other than calls: short answers, read as a whole.

The same kind of connections as for calls, HTTP/1.1 without redirects and compression, but a pool
of their own. A general client would take a tenth of a second of CPU time to import.
"""

import asyncio
import ssl
from typing import Self

from kairos.proxy.asked import header_lines
from kairos.proxy.connections import Connections, EngineContexts
from kairos.proxy.engine_answer import EngineAnswer, Limit
from kairos.proxy.engine_client import Upstream
from kairos.proxy.engine_link import Origin
from kairos.settings import MAX_ENGINES

MAX_FETCHED_BYTES = 4 << 20  # of an answer; the rest is left out
# Compressing 51 KB takes longer than sending them.
_PLAIN = header_lines([b"Accept-Encoding: identity"]) + b"\r\n"


class Fetcher:
    """Fetcher of short answers; an async context manager."""

    def __init__(self, contexts: EngineContexts, limit_s: float) -> None:
        """Create the fetcher. `limit_s` is the timeout of one answer."""
        self._contexts, self._limit_s = contexts, limit_s
        self._connections: Connections | None = None
        self._used: dict[Origin, ssl.SSLContext] = {}

    async def __aenter__(self) -> Self:
        self._connections = Connections(self._contexts)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._connections is not None:
            self._connections.close()

    async def get(self, upstream: Upstream, path: str, query: str = "") -> tuple[int, bytes]:
        """Return the status and the body.

        Raises:
            EngineRefused: The address refuses connections.
            TimeoutError: The answer did not arrive in time.
            ConnectionBroke: The answer was cut off, or is not HTTP.
            OSError: The connection failed; as TlsFilesOfNoUse, none can be made.
        """
        assert self._connections is not None, "used outside of `async with`"
        head = upstream.head("GET", path, query.encode("ascii")) + _PLAIN
        self._look_at_tls(upstream)
        taken = _TakenWhole()
        limit = Limit(self._limit_s, self._limit_s)
        answer = EngineAnswer(taken, head, b"", limit, "GET")
        try:
            async with asyncio.timeout(self._limit_s):
                self._connections.send(answer, upstream.origin)
                await taken.done
        finally:
            answer.close()  # nothing, where it is whole
        return answer.status, bytes(taken.body)

    def _look_at_tls(self, upstream: Upstream) -> None:
        """Open a new connection after the TLS files have changed.

        A connection in constant use never ends by itself.

        Raises:
            TlsFilesOfNoUse: The files cannot be used.
        """
        if upstream.tls is None:
            return
        context, origin = self._contexts.of(upstream.tls), upstream.origin
        if self._used.get(origin) is not context and self._connections is not None:
            self._connections.begin_anew(origin)
            if len(self._used) >= MAX_ENGINES:  # engines have come and gone
                self._used.clear()
            self._used[origin] = context


class _TakenWhole:
    """An `AnswerTaker` that collects the body."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begun(self, answer: EngineAnswer) -> None:
        """See `AnswerTaker`."""

    def came(self, data: bytes) -> None:
        """See `AnswerTaker`."""
        self.body += data[: MAX_FETCHED_BYTES - len(self.body)]
        if len(self.body) >= MAX_FETCHED_BYTES:
            self.ended()

    def ended(self) -> None:
        """See `AnswerTaker`."""
        if not self.done.done():
            self.done.set_result(None)

    def broke(self, error: Exception) -> None:
        """See `AnswerTaker`."""
        if not self.done.done():
            self.done.set_exception(error)
