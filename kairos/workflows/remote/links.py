"""Connection to a processor that is a separate service."""

import asyncio
import socket
from collections import deque

import aiohttp
import msgspec

from kairos.core import InvalidRequest, Unavailable, UpstreamFailed
from kairos.proxy import describe_cause, read_error
from kairos.workflows.execute.commands import RunProcessor
from kairos.workflows.remote.wire import (
    ABOUT,
    HELD,
    MOST_BYTES,
    MOST_DROPPED,
    TASKS,
    AboutProcessor,
    ProcessorReply,
    ProcessorTask,
)

_LOOK_S = 10.0
_MESSAGE_LIMIT = 300
_MOST_TO_DROP = 100_000  # ids waiting to be sent; at the end all values of a run are dropped anyway

# A busy processor may send nothing for minutes; only a dead host fails to acknowledge probes.
_PROBES = {
    "TCP_KEEPIDLE": 10,  # seconds without traffic until the first
    "TCP_KEEPINTVL": 5,  # seconds from one to the next
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 60_000,  # milliseconds until sent data must be acknowledged
}

_read_reply = msgspec.json.Decoder(ProcessorReply).decode
_read_about = msgspec.json.Decoder(AboutProcessor).decode


def watched_socket(of: aiohttp.AddrInfoType) -> socket.socket:
    """Make a socket that breaks within a minute if the remote host is gone.

    Only if the system supports it, as Linux does. `of`: as `getaddrinfo` returns it.
    """
    family, kind, protocol, *_ = of
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class ProcessorLink:
    """Link to a processor.

    `place`: HOST:PORT. `about`: its models and collections; None: not known yet. `in_hand`: tasks
    sent to it that have not ended.
    """

    def __init__(
        self, session: aiohttp.ClientSession, place: str, base_url: str, headers: dict[str, str]
    ) -> None:
        self._session, self._base_url, self._headers = session, base_url, headers
        self.place = place
        self.about: AboutProcessor | None = None
        self.in_hand = 0
        self._to_drop: dict[str, deque[str]] = {}  # by run

    async def look(self) -> None:
        """Ask which models and collections the processor offers.

        Raises:
            Unavailable: it cannot be reached, or it refuses for now.
            KairosError: it is not a processor, or rejects the API key.
        """
        raw = await self._at_once("GET", ABOUT)
        try:
            self.about = _read_about(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamFailed(
                f"{self.place} is not a processor of this Kairos: {error}"
            ) from None

    async def ask(self, run: str, tenant: str, began_at: int, of: RunProcessor) -> ProcessorReply:
        """Have the processor do a task.

        Raises:
            Unavailable: another processor may do it, or this one later.
            KairosError: a retry makes no sense.
        """
        task = ProcessorTask(
            run=run,
            tenant=tenant,
            place=self.place,
            began_at=began_at,
            command=of,
            drop=self._dropped(run),
        )
        self.in_hand += 1
        try:
            raw = await self._request("POST", TASKS, msgspec.json.encode(task))
        finally:
            self.in_hand -= 1
        try:
            return _read_reply(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamFailed(f"{self.place} did not answer like a processor: {error}") from None

    def drop(self, run: str, value_id: str) -> None:
        """Drop a value; the id is sent with the next task of the run."""
        waiting = self._to_drop.setdefault(run, deque(maxlen=_MOST_TO_DROP))
        waiting.append(value_id)

    async def drop_run(self, run: str) -> None:
        """Drop all values of a run. Raises KairosError: the processor was not told."""
        self._to_drop.pop(run, None)
        await self._at_once("DELETE", f"{HELD}/{run}")

    def _dropped(self, run: str) -> tuple[str, ...]:
        waiting = self._to_drop.get(run)
        if waiting is None:
            return ()
        dropped = tuple(waiting.popleft() for _ in range(min(len(waiting), MOST_DROPPED)))
        if not waiting:
            del self._to_drop[run]
        return dropped

    async def _at_once(self, method: str, path: str) -> bytes:
        """Send a request that takes no work, with a short timeout."""
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._request(method, path, None)
        except TimeoutError:
            raise Unavailable(f"{self.place} has not answered in {_LOOK_S:g} s") from None

    async def _request(self, method: str, path: str, data: bytes | None) -> bytes:
        url = self._base_url + path
        try:
            async with self._session.request(
                method, url, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                raw = await self._read(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            # It may be dead. All tasks may be repeated, and elsewhere.
            raise Unavailable(f"no answer from {url}: {describe_cause(error)}") from error
        if response.status in (200, 204):
            return raw
        told = read_error(raw).message[:_MESSAGE_LIMIT] or "nothing"
        message = f"the processor {self.place} answered {response.status}: {told}"
        if response.status in (429, 503):
            raise Unavailable(message)
        raise (InvalidRequest if 400 <= response.status < 500 else UpstreamFailed)(message)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        raw = bytearray()
        async for chunk in response.content.iter_any():
            raw += chunk
            if len(raw) > MOST_BYTES:
                raise UpstreamFailed(f"{self.place}: the answer exceeds {MOST_BYTES} bytes")
        return bytes(raw)
