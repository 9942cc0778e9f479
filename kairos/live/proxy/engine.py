"""The engine adapter: carries calls to OpenAI-compatible upstreams over kept-alive connections."""

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any, Self

from yarl import URL

from kairos.config import ANSWER_S, STALL_S
from kairos.errors import (
    KairosError,
    UpstreamUnreachable,
)
from kairos.events import Dispatch, Refuse
from kairos.live.proxy.engine_answer import EngineAnswer, EngineRefused, Limit
from kairos.live.proxy.sse import SseReader
from kairos.live.proxy.upstream import Connections, Headers
from kairos.refusals import REFUSALS


class Upstream:
    """Where one instance is, and the key that it asks for. The key goes nowhere else."""

    def __init__(self, instance_id: str, base_url: str, api_key: str | None = None) -> None:
        self.id = instance_id
        self._base_url = base_url.rstrip("/")
        self._urls: dict[str, URL] = {}
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.raw_headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]

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
        self._limits = {
            True: Limit(stall_s),
            False: Limit(answer_s, answer_s),
        }
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        self.streams: dict[str, SseReader] = {}  # answers under way, by request id
        self._expected: dict[str, tuple[int, asyncio.Future[Dispatch]]] = {}
        self._turns = count(1)
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of the calls that are expected
        self._given_up: dict[str, KairosError] = {}  # of those that are to end, wherever they are
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = Connections()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._connections is not None:
            self._connections.close()

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
        meaning = REFUSALS[command.reason]
        error = meaning.error(command)
        if not future.done():
            future.set_exception(error)
        elif meaning.wherever:  # it runs
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
        headers: Headers,
        body: bytes,
        *,
        streams: bool,
    ) -> EngineAnswer:
        """Send the call and return once the engine's status and headers are here.

        Raises:
            UpstreamUnreachable: no connection, or it ended before an answer began, or none began
                in time.
        """
        assert self._connections is not None, "used outside of `async with`"
        try:
            return await self._connections.send(method, url, headers, body, self._limits[streams])
        except (TimeoutError, OSError) as error:
            refused = isinstance(error, EngineRefused)
            raise UpstreamUnreachable(instance_id, type(error).__name__, refused=refused) from error
