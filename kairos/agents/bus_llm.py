"""LLM calls over Kafka: a request on the pool's topic, a reply on a topic of the caller.

Code shared with HTTP is in `http_llm.py`: bodies, identities, errors, retries.
"""

import asyncio
import logging
import re
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, Self

import msgspec

from kairos.cluster import CALL, TOLD, TYPE_HEADER, KafkaCluster, Producer, Tail, Told
from kairos.core import (
    BUS_HEADERS,
    Cancelled,
    Header,
    KairosError,
    Message,
    Topic,
    Unavailable,
    UpstreamFailed,
)
from kairos.observe import count_left_out
from kairos.proxy import ANSWER_BYTES, Patience, read_answer

_RESTART_S = 1.0
_QUIET_S = 30.0  # without any reply from a pool, after which that is logged
_NAME_LENGTH = 200  # of a reply topic's last part

log = logging.getLogger(__name__)


class BusReply(msgspec.Struct, frozen=True):
    """Reply to a call, as over HTTP. A body that is not JSON comes as a text."""

    status: Annotated[int, msgspec.Meta(ge=100, le=599)]
    body: msgspec.Raw = msgspec.Raw(b"null")
    retry_after: str = ""

    def answer(self) -> dict[str, Any]:
        """Return the answer. Raises KairosError, as over HTTP."""
        raw = bytes(self.body)
        if raw.startswith(b'"'):
            raw = msgspec.json.decode(raw, type=str).encode()
        return read_answer(self.status, b"" if raw == b"null" else raw, self.retry_after)


_reply = msgspec.json.Decoder(BusReply)


class BusLLM:
    """Client of chat completions over a pool's topics; an async context manager.

    Exactly one reply is passed to the caller of each call: others under its name, and replies to
    calls of other processes that share the topic `replies`, are dropped. That topic must exist.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        pool: str = "default",
        name: str | None = None,
        model: str | None = None,
        timeout_s: float = 600,
        again_s: float = 60,
        patience: Patience | None = None,
    ) -> None:
        """Prepare the client.

        `again_s`: a missing reply is requested again at this interval, under the same name, in case
        it was lost; a call that still waits or runs is not made twice by that. `timeout_s`: the
        attempt fails after it.
        """
        self.replies = reply_topic(name)
        self._cluster = cluster
        self._pool = pool
        self._model = {"model": model} if model is not None else {}
        self._timeout_s, self._again_s = timeout_s, again_s
        self._patience = patience or Patience()
        self._waiting: dict[str, asyncio.Future[BusReply]] = {}  # by request id
        self._is_doubted = True  # whether any process answers for the pool
        self._listens = asyncio.Event()  # replies to requests sent from now on are received

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._producer = await stack.enter_async_context(Producer(self._cluster))
            await stack.enter_async_context(_in_background(self._read_replies()))
            await self._listens.wait()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self._stack.aclose()

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        request_id = headers.get(Header.REQUEST_ID) or secrets.token_hex(16)
        data = msgspec.json.encode({**self._model, **body})
        return await self._patience.until_answered(partial(self._ask, request_id, data), headers)

    async def _ask(
        self, request_id: str, data: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Make a call.

        Raises:
            Unavailable: a retry makes sense.
            KairosError: a retry makes no sense.
        """
        await self._listens.wait()
        said = {ours: headers[theirs] for theirs, ours in BUS_HEADERS.items() if theirs in headers}
        named = {
            TYPE_HEADER: CALL,
            BUS_HEADERS[Header.REQUEST_ID]: request_id,
            Header.REPLY_TO: self.replies,
        }
        try:
            with self._expecting(request_id) as expected:
                async with asyncio.timeout(self._timeout_s):
                    while not expected.done():
                        await self._producer.send(Topic.REQUESTS, self._pool, data, said | named)
                        await self._wait(expected)
                reply = expected.result()
        except TimeoutError:
            raise Unavailable(f"no reply came within {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._tell_cancelled(request_id)
            raise
        return reply.answer()

    async def _wait(self, expected: asyncio.Future[BusReply]) -> None:
        """Wait for the reply, until it is time to request it again."""
        quiet_s = min(_QUIET_S, self._again_s)
        await asyncio.wait([expected], timeout=quiet_s)
        if self._is_doubted and not expected.done():
            self._is_doubted = False  # once is enough
            log.warning(
                "no reply has come from the pool '%s' for %g s: is a `kairos serve` or `kairos "
                "balance` running with this --bus and --pool %s?",
                self._pool,
                quiet_s,
                self._pool,
            )
        await asyncio.wait([expected], timeout=self._again_s - quiet_s)

    @contextmanager
    def _expecting(self, request_id: str) -> Iterator[asyncio.Future[BusReply]]:
        """Yield a future for the reply.

        An earlier call of the same name was dropped by the bus: it fails.
        """
        if (earlier := self._waiting.get(request_id)) is not None and not earlier.done():
            earlier.set_exception(UpstreamFailed("the same call was made again"))
        expected = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = expected
        try:
            yield expected
        finally:
            if self._waiting.get(request_id) is expected:
                del self._waiting[request_id]

    def _tell_cancelled(self, request_id: str) -> None:
        """Cancel a call whose answer is not needed any more, so that an engine can stop it."""
        if request_id in self._waiting:
            return  # by now it is somebody else's call
        told = msgspec.json.encode(Told(self.replies, Cancelled(request_id)))
        try:
            sent = self._producer.send(Topic.REQUESTS, self._pool, told, {TYPE_HEADER: TOLD})
        except Unavailable as error:
            log.warning("call %s could not be cancelled: %s", request_id, error)
        else:
            sent.add_done_callback(lambda each: each.cancelled() or each.exception())

    async def _read_replies(self) -> None:
        """Read replies until cancelled; if the topic cannot be read, calls are sent again."""
        problem = ""
        while True:
            try:
                async with Tail(self._cluster, self.replies) as replies:
                    self._listens.set()
                    while True:
                        for reply in await replies.batch():
                            self._take(reply)
            except KairosError as error:
                if str(error) != problem:  # or once a second
                    log.warning("%s: %s", self.replies, problem := str(error))
                self._listens.clear()
                for expected in self._waiting.values():
                    if not expected.done():
                        expected.set_exception(Unavailable(problem))
            await asyncio.sleep(_RESTART_S)

    def _take(self, reply: Message) -> None:
        request_id = reply.headers.get(BUS_HEADERS[Header.REQUEST_ID])
        if request_id is None:
            count_left_out(self.replies)
            return
        expected = self._waiting.get(request_id)
        if expected is None or expected.done():
            return  # another process's, or said again
        self._is_doubted = False
        try:
            expected.set_result(read_reply(reply.value))
        except UpstreamFailed as error:
            expected.set_exception(error)


def read_reply(value: bytes) -> BusReply:
    if len(value) > ANSWER_BYTES:
        raise UpstreamFailed(f"the answer exceeds {ANSWER_BYTES} bytes")
    try:
        return _reply.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed(f"the reply cannot be read: {error}") from error


def reply_topic(name: str | None = None) -> str:
    """Return the topic for replies of a process: by default one for all processes of the host."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", name or socket.gethostname())
    return f"{Topic.REPLIES}{host[:_NAME_LENGTH] or 'host'}"


@asynccontextmanager
async def _in_background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
