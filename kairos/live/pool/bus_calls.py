"""LLM calls that came over the bus: performed where the balancer is active, answered on the topic
that the caller named."""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from kairos.errors import (
    DeadlinePassed,
    InvalidRequest,
    KairosError,
    MessageTooLarge,
    RequestInFlight,
    TooMuchHeld,
    Unavailable,
    UpstreamFailed,
)
from kairos.events import Arrived, Cancelled, Event, FirstToken
from kairos.live.frontend.gateway import INTERNAL
from kairos.live.kafka.producer import Producer
from kairos.live.kafka.subscription import ReceivedMessage
from kairos.live.pool.messages import CallHeaders, read_call_headers
from kairos.live.pool.performer import Performer
from kairos.live.proxy.call import Call, OnTrouble
from kairos.live.proxy.engine import HttpEngine
from kairos.live.request.body import Body, read_body
from kairos.live.request.client_response import ClientResponse, Leaving, error_body
from kairos.live.request.tokens import PromptTokens
from kairos.model import TRACEPARENT, Request, Source, Sources

logger = logging.getLogger(__name__)

TENANT = "default"  # of whoever calls over the bus
ANSWER_BYTES = 8 << 20  # of an engine; what the bus takes is less
ANSWERS_KEPT_BYTES = 64 << 20  # for a caller that asks again
_AGAIN_S = 1.0
_STOP_S = 2.0
_PATH = "/v1/chat/completions"

_encode = msgspec.json.Encoder().encode


class BusCall(msgspec.Struct):
    """A call as it came, and the topics on which its answer is awaited."""

    headers: CallHeaders
    traceparent: str | None
    body: Body
    request: Request
    reply_to: set[str]
    left: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    admitted: bool = False  # the balancer knows it
    abandoned: bool = False  # another process has taken over: nothing more is told of it
    task: asyncio.Task[None] | None = None
    answer: bytes | None = None


def read_call(message: ReceivedMessage, now: int) -> BusCall:
    """Raises InvalidRequest: the message is no LLM call."""
    headers = read_call_headers(dict(message.headers))
    body = read_body(message.value or b"", chat=True, streams_usage=False)
    if body.stream:
        raise InvalidRequest("over the bus an answer comes whole: leave out 'stream'")
    said: dict[str, Source] = {
        field: "declared"
        for field in Sources.__struct_fields__
        if getattr(headers, field) is not None
    }
    request = Request(
        id=headers.request_id,
        tenant=TENANT,
        workflow_id=headers.workflow_id or headers.request_id,
        app=headers.app,
        agent=headers.agent,
        upstream=headers.upstream,
        parent_ids=(headers.parent,) if headers.parent is not None else (),
        sources=Sources(**said),
        attempt=headers.attempt,
        deadline_at=headers.deadline,
        budget=headers.budget,
        model=body.model,
        workflow_started_at=min(headers.started_at or now, now),
        arrived_at=min(message.at, now),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        completion_limit=body.completion_limit,
        prefix=body.prefix,
        prefix_units=body.prefix_units,
    )
    traceparent = message.headers.get("traceparent", "")
    is_trace = re.fullmatch(TRACEPARENT, traceparent) is not None
    return BusCall(headers, traceparent if is_trace else None, body, request, {headers.reply_to})


class BusCalls:
    """The calls of this process that came over the bus, and the last answers."""

    def __init__(
        self,
        performer: Performer,
        engine: HttpEngine,
        producer: Producer,
        prompts: PromptTokens,
        *,
        on_trouble: OnTrouble,
        on_error: Callable[[KairosError], None],
        max_held_bytes: int,
    ) -> None:
        self._performer = performer
        self._engine = engine
        self._producer = producer
        self._prompts = prompts
        self._on_trouble = on_trouble
        self._on_error = on_error
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self._calls: dict[str, BusCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answered: OrderedDict[str, bytes] = OrderedDict()
        self._answered_bytes = 0

    def start(self, call: BusCall, arrive: Callable[[Event], None]) -> asyncio.Task[None]:
        """Perform a call. `arrive` is told of its arrival, and may refuse it by a KairosError. The
        task ends once the answer is safe."""
        self._calls[call.request.id] = call
        call.task = task = asyncio.create_task(self._perform(call, arrive))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def performing(self, request_id: str) -> asyncio.Task[None] | None:
        """The task of a call that will be answered from here."""
        call = self._calls.get(request_id)
        return None if call is None or call.abandoned else call.task

    def performs(self, request_id: str) -> bool:
        """Whether the call itself is performed here, not only answered: one that was asked for
        again, and has yet to hear whether it may, is not."""
        call = self._calls.get(request_id)
        return call is not None and call.admitted and not call.abandoned

    def ask_again(self, call: BusCall) -> bool:
        """The same call, from whoever may have missed the answer; False: it is not known here."""
        request_id = call.request.id
        answer = self._answered.get(request_id)
        if self.performing(request_id) is not None:
            earlier = self._calls[request_id]
            if earlier.answer is None:
                earlier.reply_to |= call.reply_to
                return True
            answer = earlier.answer
        if answer is None:
            return False
        try:
            for topic in call.reply_to:
                sent = self._send(call, topic, answer)
                sent.add_done_callback(partial(_is_known, call))
        except Unavailable as error:  # then it asks once more
            logger.warning("the answer to %s is lost: %s", request_id, error)
        return True

    def leave(self, request_id: str, reply_to: str) -> None:
        """Who awaits the answer on that topic does so no more."""
        call = self._calls.get(request_id)
        if call is not None:
            call.reply_to.discard(reply_to)
            if not call.reply_to:
                call.left.set()

    def abandon(self, keep: Callable[[str], bool]) -> None:
        """Another process decides now. Calls that run on an engine (`keep`) are ended and answered
        here, the others there."""
        for request_id, call in list(self._calls.items()):
            if not keep(request_id):
                call.abandoned = True
                call.left.set()

    async def finish(self, limit_s: float) -> None:
        """Wait for what is under way; after that it is left to the next active balancer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        self.abandon(lambda _: False)
        if self._tasks:  # some may wait for a bus that is away
            _, still = await asyncio.wait(self._tasks, timeout=_STOP_S)
            for each in still:
                each.cancel()
            await asyncio.gather(*still, return_exceptions=True)

    async def _perform(self, call: BusCall, arrive: Callable[[Event], None]) -> None:
        size = len(call.body.content)
        self._held_bytes += size
        desk = _CallDesk(self._performer, call, arrive)
        answer = _Answer()
        exchange = ClientResponse(call.request.id, answer)
        try:
            await self._run(call, desk, exchange, answer)
            if call.left.is_set() and not exchange.started and not call.abandoned:
                await exchange.fail(DeadlinePassed())
        except KairosError as error:
            self._on_error(error)
            answer = await _failed(call, error)
        except Exception:  # the last resort, as in the gateway
            logger.exception("call %s met an error of Kairos's own", exchange.request_id)
            answer = await _failed(call, INTERNAL)
        finally:
            self._held_bytes -= size
        try:
            if not call.abandoned:
                await self._reply(call, answer)
                desk.tell()
        finally:
            if self._calls.get(call.request.id) is call:
                del self._calls[call.request.id]

    async def _run(
        self, call: BusCall, desk: "_CallDesk", exchange: ClientResponse, answer: "_Answer"
    ) -> None:
        if call.left.is_set():
            return
        asked = call.request
        prompt = await self._prompts.estimate(call.body, asked.tenant, asked.app, asked.agent)
        call.request = msgspec.structs.replace(asked, prompt_tokens=prompt.tokens)
        if self._engine.expects(call.request.id):  # of a client over HTTP
            raise RequestInFlight(call.request.id)
        if self._held_bytes > self._max_held_bytes:
            raise TooMuchHeld(self._max_held_bytes)
        headers = [(b"content-type", b"application/json")]
        if call.traceparent is not None:
            headers.append((b"traceparent", call.traceparent.encode()))
        scope = {"path": _PATH, "method": "POST", "query_string": b"", "headers": headers}

        leaving = answer.leaving
        watcher = asyncio.create_task(_watch(call, leaving))
        performed = Call(
            call.request,
            scope,
            call.body,
            desk,
            self._engine,
            self._on_trouble,
            on_counted=partial(self._prompts.learn, prompt),
            deadline=call.headers.deadline,
            ends_workflow=call.headers.workflow_id is None,
        )
        try:
            await performed.run(exchange, leaving)
        finally:
            watcher.cancel()

    async def _reply(self, call: BusCall, answer: "_Answer") -> None:
        """Return once the answer is safe, on each topic that exists."""
        call.answer = payload = answer.payload()
        if answer.status == 200:
            self._keep(call.request.id, payload)
        while True:
            try:
                sent = [self._send(call, topic, payload) for topic in call.reply_to]
                break
            except Unavailable:  # too much waits to be sent
                await asyncio.sleep(_AGAIN_S)
        for each in sent:
            await asyncio.wait([each])
            _is_known(call, each)

    def _send(self, call: BusCall, topic: str, payload: bytes) -> asyncio.Future[int]:
        request_id = call.request.id
        key = call.request.workflow_id
        send = partial(self._producer.send, topic, key, headers={"kairos-request-id": request_id})
        try:
            return send(value=payload)
        except MessageTooLarge as error:
            failed = UpstreamFailed(f"the answer is too large for the bus: {error}")
            return send(value=_encode({"status": failed.status, "body": error_body(failed)}))

    def _keep(self, request_id: str, payload: bytes) -> None:
        self._answered_bytes -= len(self._answered.pop(request_id, b""))
        self._answered[request_id] = payload
        self._answered_bytes += len(payload)
        while self._answered_bytes > ANSWERS_KEPT_BYTES:
            self._answered_bytes -= len(self._answered.popitem(last=False)[1])


class _CallDesk:
    """Where a call's facts go: its arrival to the balancer beside it, the rest by way of the bus;
    how it ended only once the answer is safe, or a crash between would lose the answer."""

    def __init__(
        self, performer: Performer, call: BusCall, arrive: Callable[[Event], None]
    ) -> None:
        self._performer = performer
        self._call = call
        self._arrive = arrive
        self._ended: list[Event] = []

    def now(self) -> int:
        return self._performer.now()

    def feed(self, event: Event) -> None:
        match event:
            case Arrived():
                self._arrive(event)
            case FirstToken():
                self._performer.feed(event)
            case _:
                self._ended.append(event)

    def tell(self) -> None:
        """Nothing, if the balancer does not know the call. One that it knew from before may have
        ended before it was asked for again."""
        if self._call.admitted:
            for event in self._ended or [Cancelled(self._call.request.id)]:
                self._performer.feed(event)


async def _failed(call: BusCall, error: KairosError) -> "_Answer":
    """The answer that there is none; what had come of one is of no use without the rest."""
    answer = _Answer()
    await ClientResponse(call.request.id, answer).fail(error)
    return answer


def _is_known(call: BusCall, sent: asyncio.Future[int]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        logger.warning("the answer to %s is lost: %s", call.request.id, error)


async def _watch(call: BusCall, leaving: Leaving) -> None:
    await call.left.wait()
    leaving.leave()


class _Answer:
    """What a call sends to its client, kept."""

    def __init__(self) -> None:
        self.leaving = Leaving()
        self.status = INTERNAL.status
        self._retry_after: str | None = None
        self._parts: list[bytes] = []
        self._bytes = 0

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        retry_after = dict(headers).get(b"retry-after")
        self._retry_after = retry_after.decode("latin-1") if retry_after else None

    def write(self, data: bytes, *, more: bool) -> bool:  # noqa: ARG002
        """Raises UpstreamFailed: there is no end to it."""
        self._bytes += len(data)
        if self._bytes > ANSWER_BYTES:
            raise UpstreamFailed(f"the answer is over {ANSWER_BYTES} bytes")
        self._parts.append(data)
        return True

    async def drained(self) -> None:
        """It is never full."""

    def take_body(self) -> bytes | None:
        """It came with the message."""
        return None

    def payload(self) -> bytes:
        body = b"".join(self._parts)
        try:
            content: object = msgspec.Raw(body) if body else None
            msgspec.json.decode(body or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content = body.decode(errors="replace")
        answer = {"status": self.status, "body": content}
        if self._retry_after is not None:
            answer["retry_after"] = self._retry_after
        return _encode(answer)
