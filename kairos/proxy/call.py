"""An LLM call, from the client's request to the last byte of the answer."""

import asyncio

from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    DeadlinePassed,
    Dispatch,
    Event,
    FactSink,
    Failed,
    Finished,
    KairosError,
    NoInstance,
    PrefillFailed,
    Progressed,
    Request,
    UpstreamUnreachable,
    WorkflowEnded,
)
from kairos.proxy.asked import Asked
from kairos.proxy.engine import HttpEngine
from kairos.proxy.engine_answer import EngineAnswer, Stalled, failure_of
from kairos.proxy.prefill_hop import PrefillHop, hop_of
from kairos.proxy.response_forwarder import (
    EngineError,
    InstanceError,
    OnTrouble,
    Owner,
    ResponseForwarder,
    RouteNotServed,
    answer_error,
    forwarder,
    trouble,
)
from kairos.request import ROUTES, Body, ClientResponse

KEEP_ALIVE_S = 5.0  # between comments in a stream that waits for its turn, or is silent


class WaitComments:
    """A periodic comment in a stream that waits, which shows that the connection is alive."""

    def __init__(self, response: ClientResponse) -> None:
        self._response, self._loop = response, asyncio.get_running_loop()
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._comment)

    def cancel(self) -> None:
        self._timer.cancel()

    def _comment(self) -> None:
        self._response.keep_alive()
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._comment)


class Call:
    """A call: it waits for its dispatch, sends the request to an engine, and forwards the answer.

    No task waits for it: each step runs in the callback that brings its input. Callbacks that run
    while facts are fed (`go`, `give_up`) feed none themselves before the next turn of the loop, so
    facts are never nested.

    If an instance fails before the client has received anything, the call waits for another
    instance; so an engine may have worked on it in vain, or twice.

    The balancer always receives exactly one of Finished, Failed and Cancelled. The call is the
    `AnswerTaker` of its engine, and the `Answering` of its client.
    """

    def __init__(
        self,
        request: Request,
        asked: Asked,
        body: Body,
        response: ClientResponse,
        sink: FactSink,
        engine: HttpEngine,
        owner: Owner,
        on_trouble: OnTrouble,
        *,
        ends_workflow: bool = False,
        tries_again: bool = False,
        patience_s: float | None = None,
    ) -> None:
        """Create the call.

        `on_trouble` receives the failure of an instance before the balancer gets the call's fact:
        the instance is probed at once, and if it refuses connections no other call goes there.
        `ends_workflow`: the call is its workflow's only one. `tries_again`: it may be retried on
        other instances, as the balancer allows. `patience_s`: its client's timeout.
        """
        self.request, self._asked, self.body, self.response = request, asked, body, response
        self.sink, self.engine, self.owner, self._on_trouble = sink, engine, owner, on_trouble
        self._ends_workflow, self.tries_again = ends_workflow, tries_again
        self._patience_s, self.reads_stream = patience_s, asked.rules.reads_stream
        self._is_known_route = asked.method == "POST" and asked.path in ROUTES
        self.answer: EngineAnswer | None = None  # that is awaited
        self._forwarder: ResponseForwarder | None = None
        self._hop: PrefillHop | None = None  # while another instance computes the prompt
        self.instance_id: str | None = None  # where it is its turn; None: it waits
        self._failure: InstanceError | None = None  # of the last instance
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._comments: WaitComments | None = None
        self._kept_alive_at = 0.0  # on the clock of the loop

    def begin(self, deadline: int | None = None) -> None:
        """Feed its arrival. From then on the client's leaving or the deadline ends the call.

        The owner receives its end.

        Raises:
            KairosError: The call is refused; the owner is not notified.
        """
        remaining_s = None
        if deadline is not None:
            remaining_s = (deadline - self.sink.now()) / SECOND
            if remaining_s <= 0:
                raise DeadlinePassed
        request_id = self.request.id
        self.engine.calls.expect(request_id, self)
        try:
            self._tell(Arrived(self.request))
        except BaseException:
            self._is_over = True
            self._drop_answer()
            self.engine.calls.forget(request_id)
            raise
        self.response.client.answering = self
        if remaining_s is not None:
            self._deadline = self._loop.call_later(remaining_s, self._expire)
        if self.instance_id is None:
            self._comment_later()
        if self.response.client.has_left:
            self.client_left()

    @property
    def where(self) -> str:
        """The instance where it is the call's turn."""
        assert self.instance_id is not None
        return self.instance_id

    # Its turn

    def go(self, dispatch: Dispatch, content: bytes | None = None) -> None:
        """Send the call to its instance. `content` replaces the client's body, if given."""
        self.instance_id, self.response.limits = dispatch.instance_id, dispatch.limits
        if self._comments is not None:
            self._comments.cancel()
            self._comments = None
        try:
            self._send(dispatch, content)
        except Exception as error:  # noqa: BLE001 - it must not reach the feeder of the fact
            self._loop.call_soon(self._fail, error)

    def give_up(self, error: KairosError, *, runs: bool) -> None:
        """End the call, wherever it is. `runs`: it has been dispatched."""
        if runs:
            self._loop.call_soon(self._end, Cancelled(self.request.id), error)
        else:
            self._loop.call_soon(self._give_up, error)

    def _give_up(self, error: KairosError) -> None:
        failure = self._failure
        if failure is None or not isinstance(error, NoInstance):
            self._failed(error)
        elif isinstance(failure, EngineError) and failure.lacks_route() and self._is_known_route:
            self._failed(RouteNotServed(self._asked.path, failure.instance_id))
        elif isinstance(failure, EngineError) and failure.is_for_client:
            self._end(answer_error(failure, self.response))  # there is no other instance
        else:
            self._failed(failure)

    def _comment_later(self) -> None:
        """Send comments to a client that reads a stream while the call waits."""
        if self.reads_stream and self.body.stream:
            self._comments = WaitComments(self.response)

    def _send(self, dispatch: Dispatch, content: bytes | None) -> None:
        """Send the request. Raises InstanceNotKnown: This process does not know the instance."""
        client, asked, body = self.engine.client, self._asked, self.body
        self._hop = None
        if content is None and dispatch.prefill_id is not None:
            self._hop = hop_of(dispatch, asked, body.content, client, self._decode)
        if self._hop is not None:
            self.answer = self._hop.send(asked, client)
        else:
            if content is None:
                content = body.content
            self.answer = client.send_call(
                dispatch,
                asked,
                content,
                self,
                streams=body.stream,
                patience_s=self._patience_s,
            )
        self.answer.caller = self.response.caller

    def _decode(self, turn: Dispatch, content: bytes, trouble: UpstreamUnreachable | None) -> None:
        """Continue on the decode instance: the prompt was computed, or could not be."""
        if trouble is not None:
            self._on_trouble(trouble)
            self._tell(PrefillFailed(turn.request_id))
        self.go(turn, content)

    # Its answer

    def begun(self, answer: EngineAnswer) -> None:
        answer.progressed()
        try:
            self._forwarder = forwarder(self, answer)
        except Exception as error:  # noqa: BLE001 - its owner tells
            self._fail(error)

    def came(self, data: bytes) -> None:
        if self._forwarder is None:  # it is not its answer any more
            return
        try:
            self._forwarder.came(data)
        except Exception as error:  # noqa: BLE001 - its owner tells
            self._fail(error)

    def ended(self) -> None:
        """See `AnswerTaker`. The rest is the longest step, so it takes its turn."""
        self.answer = None
        self.engine.pace.begin_step(self.response.caller, self._finish)

    def _finish(self) -> None:
        if self._is_over or self._forwarder is None:
            return
        try:
            outcome = self._forwarder.ended()
        except Exception as error:  # noqa: BLE001 - its owner tells
            self._fail(error)
        else:
            self._end(outcome)

    def broke(self, error: Exception) -> None:
        answer, self.answer = self.answer, None
        if not isinstance(error, OSError):
            self._fail(error)
            return
        was_dropped = answer is not None and answer.was_dropped
        begun = self.response.started
        self._fail(failure_of(error, self.where, begun=begun, was_dropped=was_dropped))

    def stalled(self) -> None:
        """Fail: the instance has lost the call."""
        if self._hop is not None:
            self._hop.stalled()
        elif self.instance_id is not None and (self.tries_again or self.response.started):
            self._fail(Stalled(self.instance_id))

    def keep_alive(self, silent_s: float) -> None:
        """Send a comment to a client that reads a stream, after a long silence."""
        if silent_s >= KEEP_ALIVE_S and self.reads_stream and self.body.stream:
            now = self._loop.time()
            if now >= self._kept_alive_at + KEEP_ALIVE_S:
                self._kept_alive_at = now
                self.response.keep_alive()

    def client_drained(self) -> None:
        if self.answer is not None:
            self.answer.resume()

    # Its end

    def _fail(self, error: Exception) -> None:
        """Retry the call on another instance, if possible; else fail."""
        if self._is_over:
            return
        self._drop_answer()
        is_elsewhere_better = self.tries_again and not self.response.started
        if is_elsewhere_better and isinstance(error, InstanceError):
            try:
                self._pass_on(error)
            except Exception as refused:  # noqa: BLE001 - its owner tells
                self._failed(refused)
        else:
            self._failed(error)

    def _pass_on(self, error: InstanceError) -> None:
        """Return the call to the queue, to wait for another instance."""
        request_id = self.request.id
        self._on_trouble(trouble(error, self.where))
        self._failure, self.instance_id = error, None
        self.engine.calls.forget(request_id)
        self.engine.calls.expect(request_id, self)
        self._tell(
            Bounced(
                request_id,
                error.code,
                by_instance=error.by_instance,
                about_itself=error.about_itself,
                dropped=error.dropped,
            )
        )
        if self.instance_id is None:
            self._comment_later()

    def _failed(self, error: Exception) -> None:
        if self._is_over:
            return
        if not isinstance(error, KairosError):
            self._end(Cancelled(self.request.id), error)
            return
        by_instance = dropped = False
        if isinstance(error, InstanceError):
            by_instance, dropped = error.by_instance, error.dropped
            if self.instance_id is not None:
                self._on_trouble(trouble(error, self.instance_id))
        failed = Failed(self.request.id, error.code, by_instance=by_instance, dropped=dropped)
        self._end(failed, error)

    def _expire(self) -> None:
        """Cancel the call at its deadline, which is not the instance's fault."""
        self._end(Cancelled(self.request.id), DeadlinePassed())

    def client_left(self) -> None:
        settled = None if self._forwarder is None else self._forwarder.settled
        self._end(settled or Cancelled(self.request.id))

    def _drop_answer(self) -> None:
        answer, self.answer, self._forwarder, self._hop = self.answer, None, None, None
        if answer is not None:
            answer.close()

    def _end(self, outcome: Event, error: Exception | None = None) -> None:
        if self._is_over:
            return
        self._is_over, self._failure = True, None
        if not isinstance(outcome, Finished):
            self._tell_progress()
        self._drop_answer()
        for timer in (self._deadline, self._comments):
            if timer is not None:
                timer.cancel()
        request = self.request
        self.response.client.answering = None
        self.engine.calls.forget(request.id)
        try:
            self._tell(outcome)
            if self._ends_workflow:
                self.sink.feed(WorkflowEnded(request.tenant, request.workflow_id))
        finally:
            self.owner.ended(error)

    def _tell_progress(self) -> None:
        """Report the progress of a stream that is cut off, so that quotas count its tokens."""
        stream = self.engine.calls.streams.get(self.request.id)
        if stream is not None and (tokens := stream.completion_tokens):
            self.sink.feed(Progressed({self.request.id: tokens}))

    def _tell(self, event: Event) -> None:
        bodies, content = self.engine.failed_bodies, self.body.content
        tenant = self.request.tenant
        self.sink.feed(bodies.with_hash(event, tenant, content, self.sink.now))
