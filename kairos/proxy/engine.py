"""The engine adapter, which carries the calls of one process to engines.

Its parts are the calls in progress by request id (`CallsInFlight`), the dispatch of calls that need
no KV memory (`CallsAtOnce`), and the watch over calls that their instances have lost
(`StallWatch`).
"""

import asyncio
from collections.abc import Callable
from itertools import count, islice
from typing import TYPE_CHECKING

from kairos.core import (
    MAX_RETRIES,
    REFUSALS,
    SECOND,
    SEEN_US,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Event,
    FactSink,
    Failed,
    Finished,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    ModelNotFound,
    NoInstance,
    Progressed,
    Refuse,
    Request,
    SeenCall,
    Stalls,
    WorkflowEnded,
)
from kairos.proxy.engine_answer import EngineAnswer
from kairos.proxy.engine_client import EngineClient
from kairos.proxy.sse import SseReader
from kairos.request import FailedBodies

if TYPE_CHECKING:
    from kairos.proxy.call import Call


INTERVAL_S = SEEN_US / SECOND


PROGRESS_S = 1.0  # between reports of the progress of streamed answers
CALLS_TOLD = 10_000  # in one fact; further calls are not reported


class _Turn:
    __slots__ = ("call", "instance_id", "is_over", "number")

    def __init__(self, number: int, call: "Call") -> None:
        self.number, self.call = number, call
        self.is_over = False  # it has been dispatched or refused
        self.instance_id: str | None = None


class CallsInFlight:
    """Calls in progress: passes each its dispatch or refusal.

    It is the counterpart of `kairos.core.ports.Engine`.
    """

    def __init__(self) -> None:
        self.streams: dict[str, SseReader] = {}  # answers under way
        self._expected: dict[str, _Turn] = {}
        self._running: dict[str, int] = {}  # calls, by instance
        self.sent: dict[int, Call] = {}  # those that had their turn, by its number
        self._turns = count(1)

    def expect(self, request_id: str, call: "Call") -> None:
        """Register a call that waits for its dispatch."""
        assert request_id not in self._expected
        self._expected[request_id] = _Turn(next(self._turns), call)

    def turn(self, request_id: str) -> int:
        """Return the number of the call's present turn.

        Commands for an earlier turn, of this or another call with its id, are void.
        """
        return self._expected[request_id].number

    def expects(self, request_id: str) -> bool:
        return request_id in self._expected

    def tenant_of(self, request_id: str) -> str | None:
        """Return the tenant of the call in flight with this id, or None."""
        turn = self._expected.get(request_id)
        return None if turn is None else turn.call.request.tenant

    def is_waiting(self, request_id: str) -> bool:
        """Return whether a call with this id is in flight and not yet dispatched."""
        turn = self._expected.get(request_id)
        return turn is not None and not turn.is_over

    def running(self, instance_id: str) -> int:
        """Return the number of this process's calls on the instance."""
        return self._running.get(instance_id, 0)

    def forget(self, request_id: str) -> None:
        turn = self._expected.pop(request_id, None)
        self.streams.pop(request_id, None)
        if turn is None or (instance_id := turn.instance_id) is None:
            return
        del self.sent[turn.number]
        self._running[instance_id] -= 1
        if not self._running[instance_id]:
            del self._running[instance_id]

    def dispatch(self, command: Dispatch) -> None:
        turn = self._expected[command.request_id]
        if not turn.is_over:
            turn.is_over, turn.instance_id = True, command.instance_id
            self._running[command.instance_id] = self.running(command.instance_id) + 1
            self.sent[turn.number] = turn.call
            turn.call.go(command)

    def refuse(self, command: Refuse) -> None:
        turn = self._expected[command.request_id]
        meaning = REFUSALS[command.reason]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(meaning.error(command), runs=False)
        elif meaning.wherever and turn.instance_id is not None:
            turn.call.give_up(meaning.error(command), runs=True)

    def decline(self, request_id: str, error: KairosError) -> None:
        """Refuse a call for a reason from another process."""
        turn = self._expected[request_id]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(error, runs=False)


async def tell_progress(calls: CallsInFlight, feed: Callable[[Event], None]) -> None:
    """Feed the progress once a second, until cancelled; nothing while no answer is streamed."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        if (fact := progress(calls)) is not None:
            feed(fact)


def progress(calls: CallsInFlight) -> Progressed | None:
    """Return the number of tokens of each streamed answer that has begun."""
    begun = (
        (request_id, tokens)
        for request_id, stream in calls.streams.items()
        if (tokens := stream.completion_tokens)
    )
    told = dict(islice(begun, CALLS_TOLD))
    return Progressed(told) if told else None


class _UnderWay:
    """A call, the instances that it was sent to, and its failures; a 404 does not count."""

    def __init__(self, request: Request) -> None:
        self.request, self.faults = request, 0
        self.instances: set[str] = set()


class CallsAtOnce:
    """Immediate dispatch of calls that need no KV memory, by what this process knows. A `FactSink`.

    Counting a prompt's tokens, and reading, cancelling or deleting stored responses need no memory
    and no step of the model, so such calls neither wait in a queue nor are packed. They produce no
    facts either: quotas and budgets cover calls that engines compute.
    """

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._sink: FactSink | None = None
        self._instances: dict[str, Instance] = {}
        self._models: set[str] = set()  # that an instance ever served
        self._under_way: dict[str, _UnderWay] = {}  # by id of the call

    def beside(self, sink: FactSink) -> "CallsAtOnce":
        """Use the clock of the other calls' sink, and report ends of workflows there."""
        self._sink = sink
        return self

    def hear(self, event: Event) -> None:
        """Track the instances."""
        match event:
            case InstanceJoined(instance=instance):
                self._instances[instance.id] = instance
                self._models.update(instance.models)
            case InstanceLeft(instance_id=instance_id):
                self._instances.pop(instance_id, None)

    def now(self) -> int:
        assert self._sink is not None, "see `beside`"
        return self._sink.now()

    def feed(self, event: Event) -> None:
        """Dispatch a call that arrives or was returned; forget one that has ended.

        Raises:
            NoInstance: No present instance serves the model.
            ModelNotFound: No instance ever served it.
        """
        if isinstance(event, Arrived):
            call = _UnderWay(event.request)
            instance_id, model = self._choose(call), call.request.model
            if instance_id is None:
                if model is not None and self._instances and model not in self._models:
                    raise ModelNotFound(model, sorted(self._models))
                raise NoInstance(model)
            self._under_way[call.request.id] = call
            self._go(call, instance_id)
        elif isinstance(event, Bounced):
            call = self._under_way[event.request_id]
            instance_id = self._choose(call)
            call.faults += event.by_instance
            if instance_id is None or call.faults > MAX_RETRIES:
                self._calls.refuse(Refuse(call.request.id, call.request.model, "no_other"))
            else:
                self._go(call, instance_id)
        elif isinstance(event, Finished | Failed | Cancelled):
            self._under_way.pop(event.request_id, None)
        elif isinstance(event, WorkflowEnded) and self._sink is not None:
            self._sink.feed(event)

    def _go(self, call: _UnderWay, instance_id: str) -> None:
        call.instances.add(instance_id)
        self._calls.dispatch(Dispatch(call.request.id, instance_id))

    def _choose(self, call: _UnderWay) -> str | None:
        model = call.request.model
        able = [
            each.id
            for each in self._instances.values()
            if each.id not in call.instances and (model is None or model in each.models)
        ]
        return min(able, key=self._calls.running, default=None)


class StallWatch:
    """Detection of stalled calls: twice a second all calls on instances are checked.

    Calls that their instances have lost are sent elsewhere (`kairos/core/faults/stalls.py`), and
    silent streams get keep-alive comments. A call that begins and ends between two checks costs
    nothing. `run` it, and `hear` facts of instances.
    """

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._stalls = Stalls()
        self._answers: dict[int, EngineAnswer] = {}  # that were awaited at the last look

    def hear(self, event: Event) -> None:
        """Track the instances; ignore other facts."""
        match event:
            case InstanceStatus(instance_id=instance_id):
                self._stalls.record_status(event, self._calls.running(instance_id), _now())
            case InstanceJoined(instance=instance):
                self._stalls.add_instance(instance)
            case InstanceLeft(instance_id=instance_id):
                self._stalls.remove_instance(instance_id)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        now, sent = _now(), self._calls.sent
        answers: dict[int, EngineAnswer] = {}
        seen: list[SeenCall] = []
        for key, call in sent.items():
            in_flight = _seen(key, call)
            if in_flight is not None and call.answer is not None:
                answers[key] = call.answer
                seen.append(in_flight)
                if not in_flight.is_paused:
                    call.keep_alive((now - in_flight.since) / SECOND)
        for key in self._answers.keys() - answers.keys():
            if self._answers[key].is_whole:
                self._stalls.end_watch(key, now)
        self._answers = answers
        for call in [sent[key] for key in self._stalls.probe_calls(seen, now)]:
            call.stalled()


def _seen(key: int, call: "Call") -> SeenCall | None:
    """Return the call as seen at its instance; None if it is not there yet."""
    answer, instance_id = call.answer, call.instance_id
    since = None if answer is None else answer.silent_since
    if answer is None or instance_id is None or since is None:
        return None
    return SeenCall(
        key,
        instance_id,
        call.request.model,
        call.request.prompt_tokens,
        int(since * SECOND),
        call.body.stream,
        call.response.started,
        answer.is_paused,
    )


def _now() -> int:
    return int(asyncio.get_running_loop().time() * SECOND)


class HttpEngine:
    """Engine adapter: the parts that a call needs.

    A call registers as waiting (`calls`); its dispatch names the instance, and it is sent there
    (`client`). Its longest steps are taken at the loop's `pace`. A call that its instance has lost
    is sent to another one (`stall_watch`).
    """

    def __init__(self, client: EngineClient) -> None:
        """Create the adapter. `client` must have been entered."""
        self.calls = CallsInFlight()
        self.client = client
        self.stall_watch = StallWatch(self.calls)
        self.at_once = CallsAtOnce(self.calls)
        self.pace = client.pace
        self.failed_bodies = FailedBodies()

    def hear(self, event: Event) -> None:
        """Track the instances and their status."""
        self.stall_watch.hear(event)
        self.at_once.hear(event)
