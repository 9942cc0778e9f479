"""The brain: facts in, commands out. No clock, no I/O, no dice.

A request waits in the queue of its model. After every fact that could make room, the queues are
drained: the first request by policy among all queues whose requests can still be placed is booked
on an instance and dispatched, until nothing more fits. A request that does not fit does not hold
back a smaller one behind it that does not delay it (`scheduler/queue.py`); and for one that is
overdue, room is kept.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import count
from typing import Literal

from kairos.dispatcher.circuits import Circuits
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.outlook import OPTIMISM, least_us
from kairos.dispatcher.placements import Placement
from kairos.dispatcher.room import Room, check_servable, could_take, stranded
from kairos.errors import QueueFull, WorkflowCancelled
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
    Returned,
    Tick,
    WorkflowEnded,
)
from kairos.learnt import agent_key
from kairos.model import SECOND, Budget, Request
from kairos.position import IDLE_US, WorkflowKey, workflow_key
from kairos.scheduler.budgets import UNLIMITED, Budgets
from kairos.scheduler.drain import Drain
from kairos.scheduler.knowledge import Knowledge
from kairos.scheduler.newcomers import Newcomers
from kairos.scheduler.policies import Policy
from kairos.scheduler.priority import priority_of
from kairos.scheduler.queue import BACKFILL, MAX_WAIT_US, OVERTAKEN, PASSED_OVER, WaitQueue

MAX_WAITING = 10_000
_PACE = 64  # dispatches, by which it is told
_LONGEST_RETRY_S = 60
_MAX_CANCELLED = 10_000  # workflows of which further calls are refused
RETRIES = 2  # of a call, on instances that have not had it
_TURNED_AWAY = ("queue_full", "too_late")  # as a request arrived
_FREES_NO_ROOM = WorkflowEnded | ProfilesLearnt


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
        budget: Budget = UNLIMITED,
    ) -> None:
        """`max_wait_us` in the queue a request is given up; after `idle_us` without any fact about
        it a workflow is forgotten. `overtaken`, `backfill`, `passed_over`: see
        `scheduler/queue.py`. `budget`: the most that a workflow may use."""
        self.knowledge = Knowledge(idle_us=idle_us)
        self.ledger = Ledger(self.knowledge)
        self._policy = policy(self.knowledge)
        self._placement = placement(self.ledger)
        self._max_waiting = max_waiting
        self._max_wait_us = max_wait_us
        self._overtaken, self._backfill, self._passed_over = overtaken, backfill, passed_over
        self._queues: dict[str | None, WaitQueue] = {}  # by model; only models that were served
        self._drains: dict[str | None, Drain] = {}  # of the same
        self._workflow_of: dict[str, WorkflowKey] = {}  # of all requests here
        self._tried: dict[str, set[str]] = {}  # see `Tried`
        self._budgets = Budgets(self.knowledge.positions, budget)
        self._newcomers = Newcomers()
        self._cancelled: OrderedDict[WorkflowKey, None] = OrderedDict()  # the latest of them
        self.circuits = Circuits()
        self._arrivals = count()
        self._models: set[str] = set()  # all models that an instance ever served
        self.at = 0  # when the last fact was told
        self._drained_at = 0
        self._dispatched_at: deque[int] = deque(maxlen=_PACE)  # the latest

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def tick_at(self) -> int | None:
        """When the next request will have waited as long as it may, or an instance that is left
        alone may be tried with one, or a workflow's time is up: time for a `Tick`."""
        instants = [self._budgets.next_end_at]
        oldest = [queue.oldest().arrived_at for queue in self._queues.values() if queue]
        if oldest:
            instants.append(min(oldest) + self._max_wait_us)
            instants.append(self.circuits.next_try_at(self._drained_at))
        return min((each for each in instants if each is not None), default=None)

    def in_flight(self) -> list[tuple[Request, str | None]]:
        """All requests that are here, in order of arrival, with the id of the instance on which
        each runs; None: it waits."""
        return [(each, self.ledger.instance_of(each.id)) for each in self.knowledge.requests()]

    def handle(self, event: Event, at: int) -> list[Command]:
        """Apply one fact; return what to do about it, in order.

        Facts about requests that are not here (late, repeated) change nothing. `at` never runs
        backwards from one fact to the next.

        Raises:
            NoInstance, ModelNotFound, NeverFits, BudgetExceeded, QueueFull, WorkflowCancelled: the
                request that arrived is refused; the state is as before.
        """
        assert at >= self.at, f"{at} is before {self.at}"
        self._begin(at)
        if isinstance(event, Arrived):
            if event.request.id in self._workflow_of:
                return []
            if workflow_key(event.request) in self._cancelled:
                raise WorkflowCancelled
            check_servable(event.request, self.ledger, self._models)
            self.knowledge.positions.forget_idle(at)
            self._budgets.check(event.request, at)
            if self.waiting >= self._max_waiting and not self._may_take_a_place(event.request):
                raise QueueFull(self.waiting, self._retry_after_s())
        self._take_in(event, at)
        refused = self._refuse(self._given_up(event, at), at)
        frees_no_room = isinstance(event, _FREES_NO_ROOM) and not refused
        return refused if frees_no_room else refused + self._drain(at)

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
        refused = self._refuse([each for each in here if isinstance(each, Refuse)], at)
        dispatched = {
            each.request_id: each
            for each in here
            if isinstance(each, Dispatch) and each.request_id not in self.ledger
        }
        if dispatched or refused or not isinstance(event, _FREES_NO_ROOM):
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
                    self._judge(event, at)
                    finished = event if isinstance(event, Finished) else None
                    self._rekey(self._forget(event.request_id, at, finished))
            case Returned():
                if event.request_id in self.ledger:
                    self._judge(event, at)
                    self._take_back(event.request_id, at)
            case WorkflowEnded(tenant=tenant, workflow_id=workflow_id):
                self.knowledge.workflow_ended((tenant, workflow_id))
                if event.cancelled:
                    self._note_cancelled((tenant, workflow_id))
                else:
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
                for drain in self._drains.values():
                    drain.forget()
                self._models.update(instance.models)
            case InstanceLeft(instance_id=instance_id):
                self.ledger.leave(instance_id)
                self.circuits.forget(instance_id)

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
            self._drains[model] = Drain()
        self._workflow_of[request.id] = workflow_key(request)
        self.knowledge.arrived(request, at)
        self._budgets.arrived(request)
        self.ledger.returns.arrived(request, at)
        self._queues[model].push(request, at)
        self._drains[model].waits(at)
        if not self.knowledge.positions.has_begun(workflow_key(request)):
            self._newcomers.add(request)
        self._rekey(workflow_key(request))

    def _needs_too_long(self, request: Request, at: int) -> int | None:
        """A request that waits and has a deadline: in what time it would be done at the earliest,
        if that is too late."""
        if request.deadline_at is None:
            return None
        queue, each_us = self._queues[request.model], self._drains[request.model].each_us
        serving = self.ledger.serving(request.model)
        profile, _ = self.knowledge.published(agent_key(request))
        needs_us = least_us(request, serving, self.ledger, profile)
        left_us = request.deadline_at - at
        if each_us is not None and needs_us + each_us * len(queue) / OPTIMISM > left_us:
            needs_us += each_us * queue.ahead_of(request.id) / OPTIMISM
        return math.ceil(needs_us) if needs_us > left_us else None

    def _may_take_a_place(self, request: Request) -> bool:
        """In a queue that is full: another's."""
        has_begun = self.knowledge.positions.has_begun(workflow_key(request))
        return has_begun and len(self._newcomers) > 0

    def _note_cancelled(self, workflow: WorkflowKey) -> None:
        self._cancelled[workflow] = None
        self._cancelled.move_to_end(workflow)
        if len(self._cancelled) > _MAX_CANCELLED:
            self._cancelled.popitem(last=False)

    def _judge(self, event: Finished | Failed | Cancelled | Returned, at: int) -> None:
        """What the end of a call says of the instance that had it."""
        instance_id = self.ledger.instance_of(event.request_id)
        if instance_id is None or instance_id not in self.ledger.instances:
            return
        if isinstance(event, Finished):
            if self.circuits:
                most = self.ledger.instances[instance_id].max_num_seqs
                self.circuits.answered(instance_id, at, most)
        elif isinstance(event, Returned) or (isinstance(event, Failed) and event.by_instance):
            answered = not isinstance(event, Returned) or event.answered
            self.circuits.failed(instance_id, at, answered=answered)

    def _take_back(self, request_id: str, at: int) -> None:
        """A request that is booked waits once more."""
        booking = self.ledger.booking(request_id)
        assert booking is not None
        self._tried.setdefault(request_id, set()).add(booking.instance_id)
        self.ledger.release(request_id, at)
        self.knowledge.returned(request_id)
        self._queues[booking.request.model].push_back(booking.request)
        self._drains[booking.request.model].waits(at)
        self._rekey(workflow_key(booking.request))

    def _forget(
        self, request_id: str, at: int, finished: Finished | None = None, *, drains: bool = True
    ) -> WorkflowKey:
        """`drains`: its leaving says how quickly its queue drains."""
        workflow = self._workflow_of.pop(request_id)
        self._tried.pop(request_id, None)
        self._newcomers.remove(request_id)
        used_tokens = self._used_tokens(request_id, finished)
        self.ledger.release(request_id, at, finished)
        for model, queue in self._queues.items():
            if request_id in queue:
                queue.remove(request_id)
                self._drains[model].left(at, is_empty=not queue, counts=drains)
        tokens = finished.completion_tokens if finished is not None else None
        self.knowledge.ended(request_id, at, tokens, used_tokens)
        return workflow

    def _used_tokens(self, request_id: str, finished: Finished | None) -> int:
        """Of prompt and answer, by the engine's word, or as far as it is known without that."""
        booking = self.ledger.booking(request_id)
        if booking is None:
            return 0
        prompt, answer = booking.request.prompt_tokens, booking.generated
        if finished is not None:
            told = finished.prompt_tokens, finished.completion_tokens
            prompt = prompt if told[0] is None else told[0]
            answer = answer if told[1] is None else told[1]
        return prompt + answer

    def _rekey(self, workflow: WorkflowKey) -> None:
        """Something happened to the workflow, which may say more of its waiting requests. They
        rest on the same state: where that of one is as it was, so is that of the others."""
        for request in self.knowledge.in_flight(workflow):
            if request.id not in self.ledger and not self._queues[request.model].rekey(request):
                return

    def _drain(self, at: int, logged: deque[Dispatch] | None = None) -> list[Command]:
        """Dispatch what fits; or what is `logged`, of requests that wait, and nothing else. Either
        way it is worked out whose turn it is, which says who is overdue."""
        self._drained_at = at
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
                kept.update(each.id for each in serving if could_take(each, overdue, self._tried))
            if dispatch is None or not queue:
                del open_queues[model]  # room only shrinks while draining: it need not be retried
        for dispatch in logged or ():  # not what this balancer would have decided
            queue = next(each for each in self._queues.values() if dispatch.request_id in each)
            self._dispatch(queue, dispatch, at)
        return commands

    def _retry_after_s(self) -> int:
        """When a tenth of what waits will have gone, at the pace of late."""
        if not self._dispatched_at:
            return 1
        took_us = self.at - self._dispatched_at[0]
        tenth_us = took_us / len(self._dispatched_at) * self.waiting / 10
        return min(max(1, math.ceil(tenth_us / SECOND)), _LONGEST_RETRY_S)

    def _dispatch(self, queue: WaitQueue, dispatch: Dispatch, at: int) -> None:
        request = queue.take(dispatch.request_id)
        self._drains[request.model].left(at, is_empty=not queue)
        self.ledger.book(request, dispatch.instance_id, at)
        self.knowledge.dispatched(dispatch.request_id, at)
        if dispatch.request_id in self._newcomers:
            workflow = self._workflow_of[dispatch.request_id]
            self._newcomers.begin(self.knowledge.in_flight(workflow))
        self._dispatched_at.append(at)

    def _first(
        self, model: str | None, queue: WaitQueue, kept: set[str], at: int
    ) -> Dispatch | None:
        """Whose turn it is in the queue, and where it would go."""
        serving = [i for i in self.ledger.serving(model) if i.id not in kept]
        if self.circuits:
            running = self.ledger.running
            serving = [i for i in serving if self.circuits.takes(i.id, running(i.id), at)]
        room = Room(serving, self.ledger, self._placement, at, self._tried)
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
            case Arrived(request=request) if needs_us := self._needs_too_long(request, at):
                return [Refuse(request.id, request.model, "too_late", needs_us=needs_us)]
            case Arrived() if self.waiting > self._max_waiting:
                newest = self._newcomers.newest()
                assert newest is not None, "or it would not have been let in"
                return [Refuse(newest.id, newest.model, "queue_full", self._retry_after_s())]
            case InstanceJoined() | InstanceLeft():
                return [
                    self._stranded(request)
                    for model, queue in self._queues.items()
                    for request in stranded(
                        queue.requests(), self.ledger.serving(model), self._tried
                    )
                ]
            case Returned(request_id=request_id):
                return self._returned_for_good(request_id)
            case WorkflowEnded(cancelled=True):
                calls = self.knowledge.in_flight((event.tenant, event.workflow_id))
                return [Refuse(each.id, each.model, "cancelled") for each in calls]
            case Tick():
                return self._due(at)
        return []

    def _due(self, at: int) -> list[Refuse]:
        """Of which the time is up: of the workflow's, wherever they are, or of the longest wait."""
        out_of_time = [
            Refuse(each.id, each.model, "out_of_time")
            for workflow in self._budgets.take_ended(at)
            for each in self.knowledge.in_flight(workflow)
        ]
        ended = {each.request_id for each in out_of_time}
        waited = [
            Refuse(each.id, model, "waited_too_long")
            for model, queue in self._queues.items()
            for each in queue.arrived_by(at - self._max_wait_us)
            if each.id not in ended
        ]
        return out_of_time + waited

    def _stranded(self, request: Request) -> Refuse:
        reason: Literal["no_other", "no_instance"] = (
            "no_other" if request.id in self._tried else "no_instance"
        )
        return Refuse(request.id, request.model, reason)

    def _returned_for_good(self, request_id: str) -> list[Refuse]:
        """If it has been tried often enough, or wherever it could be."""
        request = self.knowledge.request(request_id)
        if request is None or request_id in self.ledger:
            return []
        serving = self.ledger.serving(request.model)
        is_last = len(self._tried.get(request_id, ())) > RETRIES
        if is_last or stranded([request], serving, self._tried):
            return [self._stranded(request)]
        return []

    def _refuse(self, requests: list[Refuse], at: int) -> list[Command]:
        """New keys only once all are gone, or a wide fan-out would get them with each that goes."""
        workflows = [
            self._forget(each.request_id, at, drains=each.reason not in _TURNED_AWAY)
            for each in requests
        ]
        for workflow in dict.fromkeys(workflows):
            self._rekey(workflow)
        return [*requests]
