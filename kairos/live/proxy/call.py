"""One LLM call from the client's request to its last byte."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from kairos.errors import (
    DeadlinePassed,
    KairosError,
    NoInstance,
    UpstreamFailed,
    UpstreamUnreachable,
)
from kairos.events import Arrived, Bounced, Cancelled, Dispatch, Event, Failed, WorkflowEnded
from kairos.live.proxy.engine import HttpEngine
from kairos.live.proxy.response_forwarder import EngineError, OnAnswer, OnCounted, ResponseForwarder
from kairos.live.request.body import Body
from kairos.live.request.client_response import ClientResponse, Leaving, Scope
from kairos.model import SECOND, Request

OnTrouble = Callable[[UpstreamUnreachable], None]

_BY_INSTANCE = UpstreamFailed, UpstreamUnreachable  # it is the instance's fault

KEEP_ALIVE_S = 5.0  # between comments in a stream that waits for its turn

STREAMING_ROUTES = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}

# By it vLLM orders what waits inside it, lower first. It wins over the body's `priority`.
_PRIORITY = b"X-Vllm-Priority"
# Of the client's headers only these go on: credentials, and headers by which vLLM can be steered
# past the queue (`X-Vllm-Priority`), do not.
_FORWARDED = (b"content-type", b"accept", b"traceparent", b"tracestate", b"baggage", b"user-agent")


class FactSink(Protocol):
    """Where a call's facts are told: the runtime, or whoever passes them on to one elsewhere."""

    def now(self) -> int: ...

    def feed(self, event: Event) -> None:
        """Raises KairosError: the request that arrived is refused."""


class Call:
    """Waits for its turn, sends the request to the engine it is given, forwards the answer.

    What comes to nothing by an instance's fault before the client has anything of it waits again,
    for another instance; so an engine may have worked on it in vain, or twice.

    Whatever happens, the balancer is told exactly one of Finished, Failed and Cancelled.
    """

    def __init__(
        self,
        request: Request,
        scope: Scope,
        body: Body,
        desk: FactSink,
        engine: HttpEngine,
        on_trouble: OnTrouble,
        *,
        on_counted: OnCounted = lambda _: None,
        on_answer: OnAnswer | None = None,
        deadline: int | None = None,
        ends_workflow: bool = False,
        tries_again: bool = False,
    ) -> None:
        """`on_trouble` hears of an instance that could not be reached before the balancer hears of
        the call, so that no other call follows it there; `on_counted`, how many tokens the prompt
        has in truth; `on_answer`, before the client has all of it, what the engine answered, and
        whether as a stream: nothing of one over `MAX_ANSWER_BYTES`. `deadline`: nobody waits after
        that instant. `ends_workflow`: nothing of it comes after the call. `tries_again`: on other
        instances, as the balancer allows."""
        self._request = request
        self._scope = scope
        self._body = body
        self._desk = desk
        self._engine = engine
        self._on_trouble = on_trouble
        self._deadline = deadline
        self._ends_workflow = ends_workflow
        self._tries_again = tries_again
        self._reads_stream = scope["path"] in STREAMING_ROUTES
        self._answering = ResponseForwarder(
            request.id,
            body,
            desk.feed,
            engine.streams,
            engine.stall_s,
            on_counted,
            on_answer,
            # /v1/responses ends its streams with an event of its own, the older two with [DONE];
            # what other routes stream we only pass on.
            reads_stream=self._reads_stream,
            tries_again=tries_again,
        )

    async def run(self, exchange: ClientResponse, leaving: Leaving) -> None:
        """Serve the call. A client that leaves ends it, wherever it is.

        Raises:
            KairosError: it ended without a whole answer, and the client is still there.
        """
        remaining_s = self._remaining_s()
        request_id = self._request.id
        turn = self._engine.expect(request_id)
        try:
            self._desk.feed(Arrived(self._request))
        except KairosError:
            self._engine.forget(request_id)
            raise
        call = asyncio.current_task()
        assert call is not None
        leaving.watch(partial(_leave, exchange, call))
        outcome: Event = Cancelled(request_id)
        try:
            if remaining_s is None:
                outcome = await self._served(turn, exchange)
            else:
                outcome = await self._served_within(remaining_s, turn, exchange)
        except DeadlinePassed:  # nobody waits any more: no fault of the instance
            raise
        except KairosError as error:
            outcome = Failed(request_id, error.code, by_instance=isinstance(error, _BY_INSTANCE))
            if isinstance(error, UpstreamUnreachable):
                self._on_trouble(error)
            raise
        except asyncio.CancelledError:
            if (given_up := self._engine.given_up(request_id)) is not None:
                call.uncancel()
                raise given_up from None
            if not exchange.client_left:
                raise
            call.uncancel()
            outcome = self._answering.settled or outcome
        finally:
            leaving.stop()
            self._engine.forget(request_id)
            self._desk.feed(outcome)
            if self._ends_workflow:
                self._desk.feed(WorkflowEnded(self._request.tenant, self._request.workflow_id))

    def _remaining_s(self) -> float | None:
        """None: there is no deadline. Raises DeadlinePassed."""
        if self._deadline is None:
            return None
        remaining_s = (self._deadline - self._desk.now()) / SECOND
        if remaining_s <= 0:
            raise DeadlinePassed
        return remaining_s

    async def _served_within(
        self, remaining_s: float, turn: asyncio.Future[Dispatch], exchange: ClientResponse
    ) -> Event:
        """Raises DeadlinePassed."""
        try:
            async with asyncio.timeout(remaining_s) as limit:
                return await self._served(turn, exchange)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlinePassed from None

    async def _served(self, turn: asyncio.Future[Dispatch], exchange: ClientResponse) -> Event:
        """Sent where it is told, and elsewhere, while that comes to nothing. The last error is the
        client's."""
        while True:
            dispatch = await self._awaited(turn, exchange)
            try:
                return await self._forward(dispatch, exchange)
            except _BY_INSTANCE as error:
                if exchange.started:
                    raise
                if self._tries_again:
                    turn = self._pass_on(error)
                    if await self._is_given(turn, exchange):
                        continue
                if isinstance(error, EngineError):
                    return await self._answering.forward_error(error, exchange)
                raise

    async def _awaited(self, turn: asyncio.Future[Dispatch], exchange: ClientResponse) -> Dispatch:
        """A client that reads a stream sees meanwhile that it is not forgotten."""
        while self._reads_stream and self._body.stream and not turn.done():
            done, _ = await asyncio.wait([turn], timeout=KEEP_ALIVE_S)
            if not done:
                await exchange.keep_alive()
        return await turn

    async def _is_given(self, turn: asyncio.Future[Dispatch], exchange: ClientResponse) -> bool:
        """Whether another instance takes the call."""
        try:
            await self._awaited(turn, exchange)
        except NoInstance:
            return False
        return True

    def _pass_on(self, error: UpstreamFailed | UpstreamUnreachable) -> asyncio.Future[Dispatch]:
        """The turn that it gets instead."""
        request_id = self._request.id
        if isinstance(error, UpstreamUnreachable):
            self._on_trouble(error)
        self._engine.forget(request_id)
        turn = self._engine.expect(request_id)
        answered = isinstance(error, UpstreamFailed)
        self._desk.feed(Bounced(request_id, error.code, answered=answered))
        return turn

    async def _forward(self, turn: Dispatch, exchange: ClientResponse) -> Event:
        instance_id = turn.instance_id
        upstream = self._engine.upstreams.get(instance_id)
        if upstream is None:  # another process of the pool decided
            raise UpstreamFailed(
                f"instance {instance_id} was chosen, which this process does not know: all "
                "processes of a pool must name the same engines"
            )
        url = upstream.url(self._scope["path"], self._scope["query_string"].decode("latin-1"))
        forwarded = {name: value for name, value in self._scope["headers"] if name in _FORWARDED}
        headers = [(b"X-Request-Id", self._request.id.encode()), *upstream.raw_headers]
        headers += forwarded.items()
        if turn.priority is not None:
            headers.append((_PRIORITY, b"%d" % turn.priority))
        method = self._scope["method"]
        response = await self._engine.send(
            instance_id, method, url, headers, self._body.content, streams=self._body.stream
        )
        try:
            return await self._answering.forward(instance_id, response, exchange)
        except asyncio.CancelledError:  # nobody waits for the rest
            response.close()
            raise
        except OSError as error:
            cause = type(error).__name__
            if not exchange.started:
                raise UpstreamUnreachable(instance_id, cause, refused=False) from error
            raise UpstreamFailed(
                f"instance {instance_id} broke off its answer ({cause})"
            ) from error
        finally:
            response.release()


def _leave(exchange: ClientResponse, call: asyncio.Task[Any]) -> None:
    """The client has gone."""
    exchange.client_left = True
    call.cancel()
