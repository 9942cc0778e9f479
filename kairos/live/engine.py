"""The engine adapter: carries calls to OpenAI-compatible upstreams over kept-alive connections."""

import asyncio
import io
from collections.abc import Iterable
from itertools import count
from typing import Any, Self

import aiohttp
from yarl import URL

from kairos.config import ANSWER_S, STALL_S
from kairos.errors import (
    BudgetExceeded,
    DeadlineTooNear,
    GaveWay,
    KairosError,
    NoInstance,
    UpstreamUnreachable,
    WaitedTooLong,
    WorkflowCancelled,
)
from kairos.events import Dispatch, Refuse
from kairos.live.sse import SseReader
from kairos.model import SECOND

# Below the 5 s after which vLLM's and llama.cpp's servers close an idle connection, so that a call
# does not meet a connection that is being closed at that moment.
KEEPALIVE_S = 4.0
CONNECT_TIMEOUT_S = 5.0
_LARGE_BODY_BYTES = 1 << 19


class Upstream:
    """Where one instance is, and the key that it asks for. The key goes nowhere else."""

    def __init__(self, instance_id: str, base_url: str, api_key: str | None = None) -> None:
        self.id = instance_id
        self._base_url = base_url.rstrip("/")
        self._urls: dict[str, URL] = {}
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def url(self, path: str, query: str = "") -> URL:
        if query:
            return URL(f"{self._base_url}{path}?{query}", encoded=True)
        url = self._urls.get(path)
        if url is None:
            url = URL(self._base_url + path, encoded=True)
            if len(self._urls) < 64:  # paths are the client's to choose: bounded
                self._urls[path] = url
        return url


class HttpEngine:
    """Tells each waiting call where to go, and sends it there.

    A call first says that it waits (`expect`); the balancer's command settles what it got. The
    sending is done by whoever holds the client's connection, so bytes take no detour.
    """

    def __init__(
        self,
        upstreams: Iterable[Upstream] = (),
        *,
        stall_s: float = STALL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`stall_s`: so long a stream may bring no event, its beginning included; `answer_s`: so
        long an answer that comes whole may take."""
        self.stall_s = stall_s
        self._timeouts = {
            True: aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=stall_s),
            False: aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, total=answer_s),
        }
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        self.streams: dict[str, SseReader] = {}  # answers under way, by request id
        self._expected: dict[str, tuple[int, asyncio.Future[Dispatch]]] = {}
        self._turns = count(1)
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of the calls that are expected
        self._given_up: dict[str, KairosError] = {}  # of those that are to end, wherever they are
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._session is not None:
            await self._session.close()

    def expect(self, request_id: str) -> asyncio.Future[Dispatch]:
        """A future of the command that says which instance will serve the request."""
        assert request_id not in self._expected
        future = asyncio.get_running_loop().create_future()
        self._expected[request_id] = next(self._turns), future
        task = asyncio.current_task()
        assert task is not None
        self._tasks[request_id] = task
        return future

    def turn(self, request_id: str) -> int:
        """Of a call that waits, or has waited: which of this process's turns it is. What was
        decided on an earlier one, of the same call or of another that went by its id, is void."""
        return self._expected[request_id][0]

    def expects(self, request_id: str) -> bool:
        """Whether a call of this id is in flight."""
        return request_id in self._expected

    def running(self, instance_id: str) -> int:
        """Calls of this process that were told to go to the instance, and have not ended."""
        turns = (future for _, future in self._expected.values())
        told = (each for each in turns if each.done() and not each.cancelled())
        return sum(e.exception() is None and e.result().instance_id == instance_id for e in told)

    def forget(self, request_id: str) -> None:
        _, turn = self._expected.pop(request_id, (0, None))
        if turn is not None and turn.done() and not turn.cancelled():
            turn.exception()  # of which asyncio would say that nobody saw it, if the call just left
        self._tasks.pop(request_id, None)
        self._given_up.pop(request_id, None)
        self.streams.pop(request_id, None)

    def dispatch(self, command: Dispatch) -> None:
        _, future = self._expected[command.request_id]
        if not future.done():
            future.set_result(command)

    def refuse(self, command: Refuse) -> None:
        _, future = self._expected[command.request_id]
        match command.reason:
            case "cancelled":
                error: KairosError = WorkflowCancelled()
            case "waited_too_long":
                error = WaitedTooLong()
            case "out_of_time":
                error = BudgetExceeded("time", "has had its time")
            case "too_late":
                error = DeadlineTooNear((command.needs_us or 0) / SECOND)
            case "queue_full":
                error = GaveWay(command.retry_after_s or 1)
            case _:
                error = NoInstance(command.model)
        if not future.done():
            future.set_exception(error)
        elif command.reason in ("cancelled", "out_of_time"):  # it runs
            self._given_up[command.request_id] = error
            self._tasks[command.request_id].cancel()

    def given_up(self, request_id: str) -> KairosError | None:
        """Why the call's task has been cancelled, if that was done here."""
        return self._given_up.get(request_id)

    def decline(self, request_id: str, error: KairosError) -> None:
        """What `refuse` does, for a reason that was told from elsewhere."""
        _, future = self._expected[request_id]
        if not future.done():
            future.set_exception(error)

    async def send(
        self,
        instance_id: str,
        method: str,
        url: URL,
        headers: dict[str, str],
        body: bytes,
        *,
        streams: bool,
    ) -> aiohttp.ClientResponse:
        """Send the call and return once the engine's status and headers are here.

        Raises:
            UpstreamUnreachable: no connection, or it ended before an answer began, or none began
                in time.
        """
        assert self._session is not None, "used outside of `async with`"
        data = io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body or None
        try:
            async with asyncio.timeout(self.stall_s if streams else None):
                return await self._session.request(
                    method,
                    url,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._timeouts[streams],
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause, refused = type(error).__name__, _was_refused(error)
            raise UpstreamUnreachable(instance_id, cause, refused=refused) from error


def _was_refused(error: Exception) -> bool:
    """Whether nothing listens there: what else keeps a connection from being made, such as too many
    open files here, says nothing of the instance."""
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ConnectionRefusedError
    )
