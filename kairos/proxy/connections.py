"""HTTP/1.1 to engines over kept-alive connections: what a call needs, and no more.

A general client spends more on a call than all that Kairos does with it: `make profile` has the
shares. This one sends one request at a time on a connection, parses the answer with llhttp
(`httptools`), and hands out its body as it arrives. It does not support redirects, cookies,
proxies, pipelining or compression. An engine is not trusted: the size of its headers is bounded,
and so is the buffered part of a body.

TLS contexts have the accepted certificates, and the client certificate.
"""

import asyncio
import socket
import ssl

from kairos.core import SetupError
from kairos.host import FreshContext, LoopPace
from kairos.proxy.engine_answer import EngineAnswer, EngineRefused
from kairos.proxy.engine_link import EngineLink, Origin
from kairos.settings import MAX_ENGINES, TlsFiles, client_context


class TlsFilesOfNoUse(OSError):
    """The TLS files cannot be used, so no connection can be made."""


class EngineContexts:
    """TLS contexts by their files; files that many engines share are read once."""

    def __init__(self) -> None:
        self._fresh: dict[TlsFiles, FreshContext] = {}

    def of(self, files: TlsFiles) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises:
            TlsFilesOfNoUse: The files cannot be used, and never could since they were set.
        """
        fresh = self._fresh.get(files)
        if fresh is None:
            if len(self._fresh) >= MAX_ENGINES:  # after many reloads
                self._fresh.clear()
            try:
                fresh = FreshContext("connections to engines", files, client_context)
            except SetupError as error:
                raise TlsFilesOfNoUse(str(error)) from None
            self._fresh[files] = fresh
        return fresh()


def why_not(error: ssl.SSLError) -> str:
    """Return a message for operators on why TLS to an engine failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None)  # which one that was not OpenSSL's has not
    return f"TLS failed: {reason or error}"


# Below the 5 s after which vLLM's and llama.cpp's servers close an idle connection, so that a call
# does not meet a connection that is being closed at that moment.
KEEPALIVE_S = 4.0
CONNECT_S = 5.0
# A host name may change its address, and a connection in constant use never ends by itself.
RENEW_S = 60.0


class Connections:
    """Connections to all engines. Idle ones are closed after `KEEPALIVE_S`."""

    def __init__(
        self, contexts: EngineContexts | None = None, pace: LoopPace | None = None
    ) -> None:
        """Create the pool. `pace` limits the reading of fast answers."""
        self.pace = pace or LoopPace()
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self._idle: dict[Origin, list[EngineLink]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._contexts = contexts or EngineContexts()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [each for idle in self._idle.values() for each in idle]:
            connection.abort()
        self._idle.clear()

    def begin_anew(self, origin: Origin) -> None:
        """Close idle connections, so that the next call opens a new one."""
        for connection in self._idle.pop(origin, []):
            connection.abort()

    def send(self, answer: EngineAnswer, origin: Origin) -> None:
        """Send a request. Its `AnswerTaker` receives the answer and every failure later.

        A failed connect is reported as EngineRefused or, on a timeout, as TimeoutError.
        """
        connection = self._take(origin)
        if connection is not None:
            connection.send(answer)
        else:
            self.send_again(answer, origin)

    def send_again(self, answer: EngineAnswer, origin: Origin) -> None:
        """Send a request on a new connection: the engine may have closed the idle one."""
        answer.connecting = self.loop.create_task(self._connect_for(answer, origin))

    async def _connect_for(self, answer: EngineAnswer, origin: Origin) -> None:
        try:
            connection = await self._connect(origin)
        except Exception as error:  # noqa: BLE001 - passed to the answer's taker
            answer.connecting = None
            answer.fail(error)
        else:
            answer.connecting = None
            connection.send(answer)

    def _take(self, origin: Origin) -> EngineLink | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()  # the latest: surplus ones time out
            if connection.is_quiet:
                return connection
            connection.abort()  # it has unrequested data
        return None

    async def _connect(self, origin: Origin) -> EngineLink:
        files, host, port = origin
        tls = None if files is None else self._contexts.of(files)
        async with asyncio.timeout(CONNECT_S):
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            errors: list[OSError] = []
            for family, _, _, _, address in found:
                try:
                    _, connection = await self.loop.create_connection(
                        lambda: EngineLink(self, origin),
                        str(address[0]),
                        int(address[1]),
                        family=family,
                        ssl=tls,
                        server_hostname=host if tls else None,
                    )
                except OSError as error:
                    errors.append(error)
                else:
                    return connection
        if all(isinstance(each, ConnectionRefusedError) for each in errors):
            raise EngineRefused(f"nothing listens at {host}:{port}")
        raise errors[0]

    def keep(self, connection: EngineLink, origin: Origin) -> None:
        """Keep the connection for its next call, unless its name is due to be resolved again."""
        connection.idle_since = now = self.now()
        if now - connection.made_at > RENEW_S:
            connection.abort()
            return
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = []
        idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(KEEPALIVE_S, self._close_idle)

    def lost(self, connection: EngineLink, origin: Origin) -> None:
        idle = self._idle.get(origin, [])
        if connection in idle:
            idle.remove(connection)

    def _close_idle(self) -> None:
        self._sweep = None
        oldest = now = self.loop.time()
        for origin, idle in list(self._idle.items()):
            for connection in [each for each in idle if now - each.idle_since >= KEEPALIVE_S]:
                idle.remove(connection)
                connection.abort()
            oldest = min(oldest, *(each.idle_since for each in idle)) if idle else oldest
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweep = self.loop.call_at(oldest + KEEPALIVE_S, self._close_idle)
