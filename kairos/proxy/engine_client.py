"""Clients of OpenAI-compatible engines over kept-alive connections: calls, and short fetches."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Sequence
from typing import Self

from yarl import URL

from kairos.core import Dispatch, UpstreamFailed
from kairos.host import LoopPace
from kairos.proxy.asked import Asked, PassedHeaders, header_lines, request_head
from kairos.proxy.connections import Connections, EngineContexts, TlsFilesOfNoUse
from kairos.proxy.engine_answer import AnswerTaker, EngineAnswer, Limit
from kairos.proxy.engine_link import Origin
from kairos.settings import ANSWER_S, LONGEST_ANSWER_S, MAX_ENGINES, STALL_S, TlsFiles

_HEADS = 64  # kept of an instance
MAX_FETCHED_BYTES = 4 << 20  # of an answer; the rest is left out
# Compressing 51 KB takes longer than sending them.
_PLAIN = header_lines([b"Accept-Encoding: identity"]) + b"\r\n"


class InstanceNotKnown(UpstreamFailed):
    """The chosen instance is not known to this process."""

    about_itself = True

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            f"instance {instance_id} was chosen, but this process does not know it: all processes "
            "of a pool must name the same engines"
        )


class Upstream:
    """Address of one instance, and its key, which is sent to no other host."""

    def __init__(
        self,
        instance_id: str,
        base_url: str,
        api_key: str | None = None,
        *,
        priority_header: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Create it.

        `priority_header` is the header for a call's priority inside the engine. `tls` is for an
        https URL; None: the system's authorities are trusted, and no client certificate is sent.
        """
        self.id = instance_id
        self._priority = priority_header.encode("ascii") if priority_header is not None else None
        self._base_url = base_url.rstrip("/")
        url = URL(self._base_url, encoded=True)
        self.tls = (tls or TlsFiles()) if url.scheme == "https" else None
        self.origin: Origin = self.tls, url.raw_host or "", url.port or 0
        self._host = url.raw_authority.rpartition("@")[2].encode("ascii")
        self._path = url.raw_path.rstrip("/").encode("ascii")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._heads: dict[tuple[str, str], bytes] = {}  # by method and path, without a query

    def url(self, path: str) -> URL:
        return URL(self._base_url + path, encoded=True)

    def head(self, method: str, path: str, query: bytes) -> bytes:
        """Return the beginning of a request: its first line and the common headers."""
        if query:
            return self._head(method, path, query)
        head = self._heads.get((method, path))
        if head is None:
            head = self._head(method, path, query)
            if len(self._heads) < _HEADS:  # paths are the client's to choose: bounded
                self._heads[method, path] = head
        return head

    def priority_line(self, priority: int | None) -> bytes | None:
        """Return the priority header, or None where the engine orders calls by their arrival."""
        if priority is None or self._priority is None:
            return None
        return b"%b: %d" % (self._priority, priority)

    def _head(self, method: str, path: str, query: bytes) -> bytes:
        target = self._path + path.encode("ascii") + (b"?" + query if query else b"")
        lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target), b"Host: " + self._host]
        lines += [f"{name}: {value}".encode() for name, value in self.headers.items()]
        return header_lines(lines)


class EngineClient:
    """Async context manager that sends calls.

    Answers arrive in callbacks, without an extra task.
    """

    def __init__(
        self,
        upstreams: Iterable[Upstream] = (),
        *,
        stall_s: float = STALL_S,
        answer_s: float = ANSWER_S,
        longest_answer_s: float = LONGEST_ANSWER_S,
        pass_headers: Sequence[str] = (),
        contexts: EngineContexts | None = None,
    ) -> None:
        """Create the client, with the limits of answers.

        `stall_s` is the maximum time without an event in a stream, its start included; `answer_s`
        the maximum for an answer that is not streamed. A client with a longer timeout extends both,
        up to `longest_answer_s`. `pass_headers`: see `PassedHeaders`. `contexts`: TLS contexts
        shared with other clients of the same engines.
        """
        self._contexts = contexts or EngineContexts()
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        self._streamed, self._whole = Limit(stall_s), Limit(answer_s, answer_s)
        self._longest_s = longest_answer_s
        self.passed_headers = PassedHeaders(pass_headers)
        self.pace = LoopPace()
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = Connections(self._contexts, self.pace)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._connections is not None:
            self._connections.close()

    def use(self, upstreams: Iterable[Upstream]) -> None:
        """Replace the upstreams.

        Read their TLS files now, so that a broken file shows before a call.
        """
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        for each in self.upstreams.values():
            if each.tls is not None:
                with contextlib.suppress(TlsFilesOfNoUse):  # a call that is sent there says so
                    self._contexts.of(each.tls)

    def send_call(
        self,
        dispatch: Dispatch,
        asked: Asked,
        body: bytes,
        taker: AnswerTaker,
        *,
        streams: bool,
        to: str | None = None,
        patience_s: float | None = None,
    ) -> EngineAnswer:
        """Send a call to the instance that it is dispatched to, or to another one, `to`.

        `taker` receives its answer and every failure, but not before this returns. `patience_s` is
        its client's timeout.

        Raises:
            InstanceNotKnown: This process does not know the instance that another one chose.
        """
        instance_id = to or dispatch.instance_id
        upstream = self.upstreams.get(instance_id)
        if upstream is None:
            raise InstanceNotKnown(instance_id)
        asked.sent(dispatch)
        beginning = upstream.head(asked.method, asked.path, asked.passed_query)
        place = upstream.priority_line(dispatch.priority)
        request_id, passed = dispatch.request_id.encode(), self.passed_headers
        head = request_head(beginning, asked, request_id, place, len(body), passed)
        limit = self._streamed if streams else self._whole
        if patience_s is not None and patience_s > limit.stall_s:
            limit_s = max(limit.stall_s, min(patience_s, self._longest_s))
            limit = Limit(limit_s, None if streams else limit_s)
        is_repeatable = asked.rules.is_retried
        answer = EngineAnswer(taker, head, body, limit, asked.method, is_repeatable=is_repeatable)
        self.send(answer, upstream)
        return answer

    def send(self, answer: EngineAnswer, upstream: Upstream) -> None:
        """Send a request whose head is complete (`asked.request_head`)."""
        assert self._connections is not None, "used outside of `async with`"
        self._connections.send(answer, upstream.origin)


class Fetcher:
    """Fetcher of short answers, read as a whole; an async context manager.

    It has the same kind of connections as calls, but a pool of its own. A general client would take
    a tenth of a second of CPU time to import.
    """

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
        self.body += data[: MAX_FETCHED_BYTES - len(self.body)]
        if len(self.body) >= MAX_FETCHED_BYTES:
            self.ended()

    def ended(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def broke(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
