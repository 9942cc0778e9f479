"""The engine adapter: carries calls to OpenAI-compatible upstreams over kept-alive connections."""

import asyncio
import io
from collections.abc import Iterable
from typing import Self

import aiohttp
from yarl import URL

from kairos.errors import KairosError, NoInstance, UpstreamUnreachable, WaitedTooLong
from kairos.events import Dispatch, Refuse
from kairos.live.sse import SseReader

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

    def __init__(self, upstreams: Iterable[Upstream]) -> None:
        self.upstreams = {upstream.id: upstream for upstream in upstreams}
        self.streams: dict[str, SseReader] = {}  # answers under way, by request id
        self._expected: dict[str, asyncio.Future[Dispatch]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
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
        self._expected[request_id] = future
        return future

    def expects(self, request_id: str) -> bool:
        """Whether a call of this id is in flight."""
        return request_id in self._expected

    def forget(self, request_id: str) -> None:
        self._expected.pop(request_id, None)
        self.streams.pop(request_id, None)

    def dispatch(self, command: Dispatch) -> None:
        future = self._expected[command.request_id]
        if not future.done():
            future.set_result(command)

    def refuse(self, command: Refuse) -> None:
        future = self._expected[command.request_id]
        if not future.done():
            too_long = command.reason == "waited_too_long"
            future.set_exception(WaitedTooLong() if too_long else NoInstance(command.model))

    def decline(self, request_id: str, error: KairosError) -> None:
        """What `refuse` does, for a reason that was told from elsewhere."""
        future = self._expected[request_id]
        if not future.done():
            future.set_exception(error)

    async def send(
        self, instance_id: str, method: str, url: URL, headers: dict[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Send the call and return once the engine's status and headers are here.

        Raises:
            UpstreamUnreachable: no connection, or it ended before an answer began.
        """
        assert self._session is not None, "used outside of `async with`"
        data = io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body or None
        try:
            return await self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
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
