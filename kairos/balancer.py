"""The brain: facts in, commands out. No clock, no I/O, no dice.

A request waits in the queue of its model. After every fact that could make room, the queues are
drained: the first request by policy among all queues whose requests can still be placed is booked
on an instance and dispatched, until nothing more fits. A request that does not fit does not hold
back a smaller one behind it that does not delay it (`scheduler/queue.py`); and for one that is
overdue, room is kept.
"""

from collections import deque
from collections.abc import Callable
from itertools import count

from kairos.dispatcher.demand import can_hold
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placements import Placement
from kairos.dispatcher.room import Room, check_servable, stranded
from kairos.errors import QueueFull
from kairos.events import (
    Arrived,
    Cancelled,
    Command,
    Dispatch,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.model import Request
from kairos.position import IDLE_US, WorkflowKey, workflow_key
from kairos.scheduler.knowledge import Knowledge
from kairos.scheduler.policies import Policy
from kairos.scheduler.priority import priority_of
from kairos.scheduler.queue import BACKFILL, MAX_WAIT_US, OVERTAKEN, PASSED_OVER, WaitQueue

MAX_WAITING = 10_000
_FREES_NO_ROOM = InstanceLeft | WorkflowEnded | ProfilesLearnt


class Balancer:
    """Owns every waiting request and every booking. Only `handle` changes them."""

    def __init__(
        self,
        policy: Callable[[Knowledge], Policy],
        placement: Callable[[Ledger], Placement],
        *,
        max_waiting: int = MAX_WAITING,
        max_wait_us: int = MAX_WAIT_US,
        idle_us: int = IDLE_US,
        overtaken: float = OVERTAKEN,
        backfill: int = BACKFILL,
        passed_over: float = PASSED_OVER,
    ) -> None:
        """`max_wait_us` in the queue a request is given up; after `idle_us` without any fact about
        it a workflow is forgotten. `overtaken`, `backfill`, `passed_over`: see
        `scheduler/queue.py`."""
        self.knowledge = Knowledge(idle_us=idle_us)
        self.ledger = Ledger(self.knowledge)
        self._policy = policy(self.knowledge)
        self._placement = placement(self.ledger)
        self._max_waiting = max_waiting
        self._max_wait_us = max_wait_us
        self._overtaken, self._backfill, self._passed_over = overtaken, backfill, passed_over
        self._queues: dict[str | None, WaitQueue] = {}  # by model; only models that were served
        self._workflow_of: dict[str, WorkflowKey] = {}  # of all requests here
        self._arrivals = count()
        self._models: set[str] = set()  # all models that an instance ever served
        self.at = 0  # when the last fact was told

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def give_up_at(self) -> int | None:
        """When the next request will have waited as long as it may: time for a `Tick`."""
        oldest = [queue.oldest().arrived_at for queue in self._queues.values() if queue]
        return min(oldest) + self._max_wait_us if oldest else None

    def in_flight(self) -> list[tuple[Request, str | None]]:
        """All requests that are here, in order of arrival, with the id of the instance on which
        each runs; None: it waits."""
        return [(each, self.ledger.instance_of(each.id)) for each in self.knowledge.requests()]

    def handle(self, event: Event, at: int) -> list[Command]:
        """Apply one fact; return what to do about it, in order.

        Facts about requests that are not here (late, repeated) change nothing. `at` never runs
        backwards from one fact to the next.

        Raises:
            NoInstance, ModelNotFound, NeverFits, QueueFull: the request that arrived is refused;
                the state is as before.
        """
        assert at >= self.at, f"{at} is before {self.at}"
        self._begin(at)
        if isinstance(event, Arrived):
            if event.request.id in self._workflow_of:
                return []
            check_servable(event.request, self.ledger, self._models)
            if self.waiting >= self._max_waiting:
                raise QueueFull(self.waiting)
        self._take_in(event, at)
        refused = self._refuse(self._given_up(event, at), at)
        return refused if isinstance(event, _FREES_NO_ROOM) else refused + self._drain(at)

    def replay(self, record: Record) -> None:
        """Apply one fact with what another balancer decided on it, and decide nothing.

        A log that is replayed whole leaves the state of the balancer that wrote it. One that begins
        later leaves the same of all requests that arrived in it; of those that did not, nothing is
        known, and facts and decisions about them change nothing. Instants that run backwards, as
        between hosts, count as the latest.
        """
        event, at = record.event, max(record.at, self.at)
        self._begin(at)
        if isinstance(event, Arrived) and event.request.id in self._workflow_of:
            return
        self._take_in(event, at)
        here = [each for each in record.commands if each.request_id in self._workflow_of]
        self._refuse([each for each in here if isinstance(each, Refuse)], at)
        dispatched = {
            each.request_id: each
            for each in here
            if isinstance(each, Dispatch) and each.request_id not in self.ledger
        }
        if dispatched or not isinstance(event, _FREES_NO_ROOM):
            self._drain(at, deque(dispatched.values()))

    def _begin(self, at: int) -> None:
        self.at = at
        for queue in self._queues.values():
            queue.renew_some()

    def _take_in(self, event: Event, at: int) -> None:
        match event:
            case Arrived(request=request):
                self._queue(request, at)
            case Finished() | Failed() | Cancelled():
                if event.request_id in self._workflow_of:
                    finished = event if isinstance(event, Finished) else None
                    self._rekey(self._forget(event.request_id, at, finished))
            case WorkflowEnded(tenant=tenant, workflow_id=workflow_id):
                self.knowledge.workflow_ended((tenant, workflow_id))
                self._rekey((tenant, workflow_id))
            case ProfilesLearnt():
                self.knowledge.learn(event)
                for queue in self._queues.values():
                    queue.start_renewing()
            case _:
                self._note(event, at)

    def _note(self, event: Event, at: int) -> None:
        """What is told of calls in flight and of instances."""
        match event:
            case FirstToken(request_id=request_id):
                self.ledger.first_token(request_id, at)
            case Progressed(completion_tokens=completion_tokens):
                self.ledger.progressed(completion_tokens, at)
            case InstanceStatus():
                self.ledger.status(event, at)
            case InstanceJoined(instance=instance):
                self.ledger.join(instance)
                self._models.update(instance.models)
            case InstanceLeft(instance_id=instance_id):
                self.ledger.leave(instance_id)

    def _queue(self, request: Request, at: int) -> None:
        model = request.model
        if model not in self._queues:
            self._queues[model] = WaitQueue(
                self._policy,
                self.knowledge,
                self._arrivals,
                self._max_wait_us,
                self._overtaken,
                self._backfill,
                self._passed_over,
            )
        self._workflow_of[request.id] = workflow_key(request)
        self.knowledge.arrived(request, at)
        self.ledger.returns.arrived(request, at)
        self._queues[model].push(request, at)
        self._rekey(workflow_key(request))

    def _forget(self, request_id: str, at: int, finished: Finished | None = None) -> WorkflowKey:
        workflow = self._workflow_of.pop(request_id)
        self.ledger.release(request_id, at, finished)
        for queue in self._queues.values():
            if request_id in queue:
                queue.remove(request_id)
        tokens = finished.completion_tokens if finished is not None else None
        self.knowledge.ended(request_id, at, tokens)
        return workflow

    def _rekey(self, workflow: WorkflowKey) -> None:
        """Something happened to the workflow, which may say more of its waiting requests. They
        rest on the same state: where that of one is as it was, so is that of the others."""
        for request in self.knowledge.in_flight(workflow):
            if request.id not in self.ledger and not self._queues[request.model].rekey(request):
                return

    def _drain(self, at: int, logged: deque[Dispatch] | None = None) -> list[Command]:
        """Dispatch what fits; or what is `logged`, of requests that wait, and nothing else. Either
        way it is worked out whose turn it is, which says who is overdue."""
        commands: list[Command] = []
        kept: set[str] = set()  # ids of instances left alone for requests that are overdue
        open_queues = {model: queue for model, queue in self._queues.items() if queue}
        while open_queues:
            model = min(open_queues, key=lambda m: open_queues[m].head_key(at))
            queue = open_queues[model]
            dispatch = self._first(model, queue, kept, at)
            if logged is not None:
                dispatch = logged.popleft() if logged and logged[0].request_id in queue else None
            if dispatch is not None:
                self._dispatch(queue, dispatch, at)
                commands.append(dispatch)
            elif (overdue := queue.overdue()) is not None:
                serving = self.ledger.serving(model)
                kept.update(each.id for each in serving if can_hold(each, overdue))
            if dispatch is None or not queue:
                del open_queues[model]  # room only shrinks while draining: it need not be retried
        for dispatch in logged or ():  # not what this balancer would have decided
            queue = next(each for each in self._queues.values() if dispatch.request_id in each)
            self._dispatch(queue, dispatch, at)
        return commands

    def _dispatch(self, queue: WaitQueue, dispatch: Dispatch, at: int) -> None:
        self.ledger.book(queue.take(dispatch.request_id), dispatch.instance_id, at)
        self.knowledge.dispatched(dispatch.request_id, at)

    def _first(
        self, model: str | None, queue: WaitQueue, kept: set[str], at: int
    ) -> Dispatch | None:
        """Whose turn it is in the queue, and where it would go."""
        serving = [i for i in self.ledger.serving(model) if i.id not in kept]
        room = Room(serving, self.ledger, self._placement, at)
        if not room.instances:
            return None
        turn = queue.first(room, at)
        self._placement.forget_reservation()
        if turn is None:
            return None
        request, instance = turn.request, room.choose(turn.request)
        assert instance is not None, "it fitted"
        remaining_us = int(self.knowledge.remaining_us(request))
        return Dispatch(
            request.id,
            instance.id,
            turn.reason,
            len(queue) - 1,
            remaining_us,
            self.knowledge.rank(request),
            self.ledger.prefixes.match(request).get(instance.id, 0),
            priority_of(remaining_us, turn.reason) if instance.priority else None,
        )

    def _given_up(self, event: Event, at: int) -> list[Refuse]:
        match event:
            case InstanceJoined() | InstanceLeft():
                return [
                    Refuse(request.id, model)
                    for model, queue in self._queues.items()
                    for request in stranded(queue.requests(), self.ledger.serving(model))
                ]
            case Tick():
                return self._late(at)
        return []

    def _late(self, at: int) -> list[Refuse]:
        """Requests that have waited as long as they may."""
        late: list[Refuse] = []
        for model, queue in self._queues.items():
            for request in queue.requests():
                if request.arrived_at + self._max_wait_us > at:
                    break
                late.append(Refuse(request.id, model, "waited_too_long"))
        return late

    def _refuse(self, requests: list[Refuse], at: int) -> list[Command]:
        """New keys only once all are gone, or a wide fan-out would get them with each that goes."""
        workflows = [self._forget(each.request_id, at) for each in requests]
        for workflow in dict.fromkeys(workflows):
            self._rekey(workflow)
        return [*requests]
