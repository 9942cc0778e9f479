"""LLM calls over the bus: the active balancer's process performs them and sends their answers."""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.pool.messages import CallHeaders, read_call_headers
from kairos.cluster.pool.performer import Performer
from kairos.core import (
    BUS_HEADERS,
    RAW_HEADERS,
    STANDARD_CLASS,
    TRACEPARENT_PATTERN,
    Arrived,
    Cancelled,
    DeadlinePassed,
    Event,
    FirstToken,
    Header,
    InvalidRequest,
    KairosError,
    MessageTooLarge,
    PrefillFailed,
    Request,
    RequestInFlight,
    Source,
    Sources,
    TooMuchHeld,
    Unavailable,
    UpstreamFailed,
)
from kairos.gateway import INTERNAL_ERROR
from kairos.proxy import Asked, Call, HttpEngine, OnTrouble
from kairos.request import (
    Answering,
    Body,
    ClientResponse,
    Estimate,
    PromptTokens,
    error_body,
    read_body,
)

logger = logging.getLogger(__name__)

TENANT = "default"  # of all callers over the bus
ANSWER_BYTES = 8 << 20  # of an engine's answer; the bus's own limit is lower
ANSWERS_KEPT_BYTES = 64 << 20  # for a caller that asks again
_AGAIN_S = 1.0
_STOP_S = 2.0
_PATH = "/v1/chat/completions"

_encode = msgspec.json.Encoder().encode


class BusCall(msgspec.Struct):
    """A call that arrived over the bus, and the topics that await its answer."""

    headers: CallHeaders
    traceparent: str | None
    body: Body
    request: Request
    reply_to: set[str]
    left: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    admitted: bool = False  # the balancer knows it
    abandoned: bool = False  # another process has taken over: this one reports nothing more of it
    task: asyncio.Task[None] | None = None
    answer: bytes | None = None


def read_call(message: ReceivedMessage, now: int) -> BusCall:
    """Parse a call. Raises InvalidRequest: The message is not a valid LLM call."""
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
        service_class=headers.service_class or STANDARD_CLASS,
        deadline_at=headers.deadline,
        budget=headers.budget,
        model=body.model,
        workflow_started_at=min(headers.started_at or now, now),
        arrived_at=min(message.at, now),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        completion_limit=body.completion_limit,
        sequences=body.sequences,
        prefix=body.prefix,
        prefix_units=body.prefix_units,
    )
    traceparent = message.headers.get(BUS_HEADERS[Header.TRACE_PARENT], "")
    is_trace = re.fullmatch(TRACEPARENT_PATTERN, traceparent) is not None
    return BusCall(headers, traceparent if is_trace else None, body, request, {headers.reply_to})


class BusCalls:
    """Calls over the bus that this process performs, and its last answers."""

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
        """Start a call, and return its task, which ends once the answer is committed.

        `arrive` receives its arrival, and may refuse it by a KairosError. An abandoned call with
        the same id ends first.
        """
        earlier = self._calls.get(call.request.id)
        self._calls[call.request.id] = call
        call.task = task = asyncio.create_task(self._perform(call, arrive, earlier))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def performing(self, request_id: str) -> asyncio.Task[None] | None:
        """Return the task of a call that this process will answer, or None."""
        call = self._calls.get(request_id)
        return None if call is None or call.abandoned else call.task

    def performs(self, request_id: str) -> bool:
        """Return whether this process performs the call itself.

        A repeated request that awaits its admission is not performed yet.
        """
        call = self._calls.get(request_id)
        return call is not None and call.admitted and not call.abandoned

    def ask_again(self, call: BusCall) -> bool:
        """Answer a repeated call, whose first answer may be lost.

        Return False if it is unknown here.
        """
        request_id = call.request.id
        answer = self._answered.get(request_id)
        if self.performing(request_id) is not None:
            earlier = self._calls[request_id]
            if earlier.answer is None and earlier.left.is_set():
                return False  # it ends without an answer
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
        except Unavailable as error:  # then the caller asks once more
            logger.warning("the answer to %s is lost: %s", request_id, error)
        return True

    def leave(self, request_id: str, reply_to: str) -> None:
        """Remove a reply topic whose reader has left; the last one ends the call."""
        call = self._calls.get(request_id)
        if call is not None:
            call.reply_to.discard(reply_to)
            if not call.reply_to:
                call.left.set()

    def abandon(self, keep: Callable[[str], bool]) -> None:
        """Abandon calls, since another process decides now.

        Calls that run on an engine (those for which `keep` is true) are finished and answered here,
        the others there.
        """
        for request_id, call in list(self._calls.items()):
            if not keep(request_id):
                call.abandoned = True
                call.left.set()

    async def finish(self, limit_s: float) -> None:
        """Wait for running calls up to a limit; then leave them to the next active balancer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        self.abandon(lambda _: False)
        if self._tasks:  # some may wait for an unreachable bus
            _, still = await asyncio.wait(self._tasks, timeout=_STOP_S)
            for each in still:
                each.cancel()
            await asyncio.gather(*still, return_exceptions=True)

    async def _perform(
        self, call: BusCall, arrive: Callable[[Event], None], earlier: BusCall | None
    ) -> None:
        if earlier is not None and earlier.task is not None:
            await asyncio.wait([earlier.task])
        size = len(call.body.content)
        self._held_bytes += size
        sink = BusFactSink(self._performer, call, arrive)
        answer = BusAnswer()
        response = ClientResponse(call.request.id, answer)
        try:
            await self._run(call, sink, response, answer)
            if call.left.is_set() and not response.started and not call.abandoned:
                response.fail(DeadlinePassed())
        except KairosError as error:
            self._on_error(error)
            answer = _failed(call, error)
        except Exception:  # a catch-all, as in the gateway
            logger.exception("call %s met an error of Kairos's own", response.request_id)
            answer = _failed(call, INTERNAL_ERROR)
        finally:
            self._held_bytes -= size
        try:
            if not call.abandoned:
                await self._reply(call, answer)
                sink.tell()
        finally:
            if self._calls.get(call.request.id) is call:
                del self._calls[call.request.id]

    async def _run(
        self, call: BusCall, sink: "BusFactSink", response: ClientResponse, answer: "BusAnswer"
    ) -> None:
        if call.left.is_set():
            return
        asked = call.request
        prompt = await self._prompts.estimate(call.body, asked.tenant, asked.app, asked.agent)
        call.request = msgspec.structs.replace(
            asked, prompt_tokens=prompt.tokens, least_prompt_tokens=prompt.least
        )
        if self._engine.calls.expects(call.request.id):  # of a client over HTTP
            raise RequestInFlight(call.request.id)
        if self._held_bytes > self._max_held_bytes:
            raise TooMuchHeld(self._max_held_bytes)
        headers = {b"content-type": b"application/json"}
        if call.traceparent is not None:
            headers[RAW_HEADERS[Header.TRACE_PARENT]] = call.traceparent.encode()
        owner = _Owner(self._prompts, prompt)
        performed = Call(
            call.request,
            Asked("POST", _PATH, b"", headers),
            call.body,
            response,
            sink,
            self._engine,
            owner,
            self._on_trouble,
            ends_workflow=call.headers.workflow_id is None,
        )
        performed.begin(call.headers.deadline)
        watcher = asyncio.create_task(_watch(call, answer))
        try:
            await owner.end
        finally:
            watcher.cancel()
            answer.leave()  # nothing, where the call has ended

    async def _reply(self, call: BusCall, answer: "BusAnswer") -> None:
        """Send the answer to each reply topic, and return once the cluster has it."""
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
        send = partial(
            self._producer.send, topic, key, headers={BUS_HEADERS[Header.REQUEST_ID]: request_id}
        )
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


def _failed(call: BusCall, error: KairosError) -> "BusAnswer":
    """Return an error as the answer; parts that were already received are discarded."""
    answer = BusAnswer()
    ClientResponse(call.request.id, answer).fail(error)
    return answer


def _is_known(call: BusCall, sent: asyncio.Future[int]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        logger.warning("the answer to %s is lost: %s", call.request.id, error)


async def _watch(call: BusCall, answer: "BusAnswer") -> None:
    await call.left.wait()
    answer.leave()


class _Owner:
    """Owner of one call, with a future for its end."""

    wants_answer = False

    def __init__(self, prompts: PromptTokens, prompt: Estimate) -> None:
        self._prompts, self._prompt = prompts, prompt
        self.end = asyncio.get_running_loop().create_future()

    def counted(self, prompt_tokens: int) -> None:
        self._prompts.learn(self._prompt, prompt_tokens)

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        """Ignore the answer: `wants_answer` is false."""

    def ended(self, error: Exception | None) -> None:
        if self.end.done():  # the waiting task has been cancelled
            return
        if error is None:
            self.end.set_result(None)
        else:
            self.end.set_exception(error)


class BusFactSink:
    """Sink of a call's facts: its arrival goes to the local balancer, the rest over the bus.

    The call's end is published only once its answer is committed, so that a crash in between does
    not lose the answer.
    """

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
            case FirstToken() | PrefillFailed():
                self._performer.feed(event)
            case _:
                self._ended.append(event)

    def tell(self) -> None:
        """Publish the call's end; do nothing if the balancer does not know the call.

        A call that it knew from before may have ended before it was requested again.
        """
        if self._call.admitted:
            for event in self._ended or [Cancelled(self._call.request.id)]:
                self._performer.feed(event)


class BusAnswer:
    """A buffer for the answer that a call sends to its client."""

    def __init__(self) -> None:
        self.answering: Answering | None = None
        self.has_left = False
        self.status = INTERNAL_ERROR.status
        self._retry_after: str | None = None
        self._parts: list[bytes] = []
        self._bytes = 0

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        retry_after = dict(headers).get(b"retry-after")
        self._retry_after = retry_after.decode("latin-1") if retry_after else None

    def write(self, data: bytes, *, more: bool) -> bool:  # noqa: ARG002
        """Append a part of the answer. Raises UpstreamFailed: The answer is too large."""
        self._bytes += len(data)
        if self._bytes > ANSWER_BYTES:
            raise UpstreamFailed(f"the answer exceeds {ANSWER_BYTES} bytes")
        self._parts.append(data)
        return True

    def cut_off(self) -> None:
        """Do nothing: an incomplete answer is not sent, its error is."""

    def leave(self) -> None:
        """Disconnect the client: nobody waits for the answer any more."""
        self.has_left = True
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_left()

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
        return msgspec.json.encode(answer)
