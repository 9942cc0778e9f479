"""The brain: facts in, commands out. No clock, no I/O, no dice.

A request waits in the queue of its model. After every fact that could make room, the queues are
drained: the first request by policy among all queues whose requests can still be placed is booked
on an instance and dispatched, until nothing more fits. A request that does not fit does not hold
back a smaller one behind it, so nothing waits beside an instance that has room for it; but for one
that is overdue, room is kept.
"""

from collections.abc import Callable, Sequence
from itertools import count

from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placements import Placement
from kairos.errors import ModelNotFound, NeverFits, NoInstance, QueueFull
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
    ProfilesLearnt,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.model import Instance, Request
from kairos.position import IDLE_US, WorkflowKey, workflow_key
from kairos.scheduler.knowledge import Knowledge
from kairos.scheduler.policies import Policy
from kairos.scheduler.queue import MAX_WAIT_US, OVERTAKEN, WaitQueue

MAX_WAITING = 10_000


class Balancer:
    """Owns every waiting request and every booking. Only `handle` changes them."""

    def __init__(
        self,
        policy: Callable[[Knowledge], Policy],
        placement: Placement,
        *,
        max_waiting: int = MAX_WAITING,
        max_wait_us: int = MAX_WAIT_US,
        idle_us: int = IDLE_US,
        overtaken: float = OVERTAKEN,
    ) -> None:
        """`max_wait_us` in the queue a request is given up; after `idle_us` without any fact about
        it a workflow is forgotten. `overtaken`: see `scheduler/queue.py`."""
        self.ledger = Ledger()
        self.knowledge = Knowledge(idle_us=idle_us)
        self._policy = policy(self.knowledge)
        self._placement = placement
        self._max_waiting = max_waiting
        self._max_wait_us = max_wait_us
        self._overtaken = overtaken
        self._queues: dict[str | None, WaitQueue] = {}  # by model; only models that were served
        self._workflow_of: dict[str, WorkflowKey] = {}  # of all requests here
        self._arrivals = count()
        self._models: set[str] = set()  # all models that an instance ever served
        self._at = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def give_up_at(self) -> int | None:
        """When the next request will have waited as long as it may: time for a `Tick`."""
        oldest = [queue.oldest().arrived_at for queue in self._queues.values() if queue]
        return min(oldest) + self._max_wait_us if oldest else None

    def handle(self, event: Event, at: int) -> list[Command]:
        """Apply one fact; return what to do about it, in order.

        Facts about requests that are not here (late, repeated) change nothing. `at` never runs
        backwards from one fact to the next.

        Raises:
            NoInstance, ModelNotFound, NeverFits, QueueFull: the request that arrived is refused;
                the state is as before.
        """
        assert at >= self._at, f"{at} is before {self._at}"
        self._at = at
        for queue in self._queues.values():
            queue.renew_some()
        match event:
            case Arrived(request=request):
                if request.id in self._workflow_of:
                    return []
                self._admit(request, at)
            case Finished() | Failed() | Cancelled():
                if event.request_id in self._workflow_of:
                    tokens = event.completion_tokens if isinstance(event, Finished) else None
                    self._rekey(self._forget(event.request_id, at, tokens))
            case InstanceJoined(instance=instance):
                self.ledger.join(instance)
                self._models.update(instance.models)
                return self._refuse_stranded(at) + self._drain(at)
            case InstanceLeft(instance_id=instance_id):
                self.ledger.leave(instance_id)
                return self._refuse_stranded(at)
            case Tick():
                return self._refuse_late(at) + self._drain(at)
            case WorkflowEnded() | ProfilesLearnt() | FirstToken():
                self._note(event)
                return []
        return self._drain(at)

    def _note(self, event: WorkflowEnded | ProfilesLearnt | FirstToken) -> None:
        """Facts that free no room."""
        if isinstance(event, WorkflowEnded):
            workflow = event.tenant, event.workflow_id
            self.knowledge.workflow_ended(workflow)
            self._rekey(workflow)
        elif isinstance(event, ProfilesLearnt):
            self.knowledge.learn(event)
            for queue in self._queues.values():
                queue.start_renewing()

    def _admit(self, request: Request, at: int) -> None:
        model = request.model
        serving = self.ledger.serving(model)
        if not serving:
            if model is None or model in self._models or not self.ledger.instances:
                raise NoInstance(model)
            raise ModelNotFound(model, sorted(self._models))
        if not any(_can_hold(instance, request) for instance in serving):
            largest = max(instance.kv_tokens or 0 for instance in serving)
            raise NeverFits(request.id, request.prompt_tokens, largest)
        if self.waiting >= self._max_waiting:
            raise QueueFull(self.waiting)
        if model not in self._queues:
            self._queues[model] = WaitQueue(
                self._policy, self.knowledge, self._arrivals, self._max_wait_us, self._overtaken
            )
        self._workflow_of[request.id] = workflow_key(request)
        self.knowledge.arrived(request, at)
        self._queues[model].push(request, at)
        self._rekey(workflow_key(request))

    def _forget(
        self, request_id: str, at: int, completion_tokens: int | None = None
    ) -> WorkflowKey:
        workflow = self._workflow_of.pop(request_id)
        self.ledger.release(request_id)
        for queue in self._queues.values():
            if request_id in queue:
                queue.remove(request_id)
        self.knowledge.ended(request_id, at, completion_tokens)
        return workflow

    def _rekey(self, workflow: WorkflowKey) -> None:
        """Something happened to the workflow, which may say more of its waiting requests. They
        rest on the same state: where that of one is as it was, so is that of the others."""
        for request in self.knowledge.in_flight(workflow):
            if request.id not in self.ledger and not self._queues[request.model].rekey(request):
                return

    def _drain(self, at: int) -> list[Command]:
        commands: list[Command] = []
        kept: set[str] = set()  # ids of instances left alone for requests that are overdue
        open_queues = {model: queue for model, queue in self._queues.items() if queue}
        while open_queues:
            model = min(open_queues, key=lambda m: open_queues[m].head_key(at))
            queue = open_queues[model]
            dispatch = self._place_first(model, queue, kept, at)
            if dispatch is not None:
                commands.append(dispatch)
            elif (overdue := queue.overdue()) is not None:
                serving = self.ledger.serving(model)
                kept.update(each.id for each in serving if _can_hold(each, overdue))
            if dispatch is None or not queue:
                del open_queues[model]  # room only shrinks while draining: it need not be retried
        return commands

    def _place_first(
        self, model: str | None, queue: WaitQueue, kept: set[str], at: int
    ) -> Dispatch | None:
        need = queue.least_need()
        free = [i for i in self.ledger.serving(model) if self.ledger.has_room(i, need)]
        room = _Room([i for i in free if i.id not in kept], self.ledger)
        turn = queue.pop_first(room, at) if room.instances else None
        if turn is None:
            return None
        request = turn.request
        instance = self._placement.choose(request, room.candidates(request), self.ledger)
        self.ledger.book(request, instance)
        self.knowledge.dispatched(request.id, at)
        remaining_us = int(self.knowledge.remaining_us(request))
        rank = self.knowledge.rank(request)
        return Dispatch(request.id, instance.id, turn.reason, len(queue), remaining_us, rank)

    def _refuse_stranded(self, at: int) -> list[Command]:
        """Give up on waiting requests that no instance which is left could ever take."""
        stranded: list[Refuse] = []
        for model, queue in self._queues.items():
            serving = self.ledger.serving(model)
            stranded += [
                Refuse(request.id, model)
                for request in queue.requests()
                if not any(_can_hold(instance, request) for instance in serving)
            ]
        return self._refuse(stranded, at)

    def _refuse_late(self, at: int) -> list[Command]:
        """Give up on requests that have waited as long as they may."""
        late: list[Refuse] = []
        for model, queue in self._queues.items():
            for request in queue.requests():
                if request.arrived_at + self._max_wait_us > at:
                    break
                late.append(Refuse(request.id, model, "waited_too_long"))
        return self._refuse(late, at)

    def _refuse(self, requests: list[Refuse], at: int) -> list[Command]:
        """New keys only once all are gone, or a wide fan-out would get them with each that goes."""
        workflows = [self._forget(each.request_id, at) for each in requests]
        for workflow in dict.fromkeys(workflows):
            self._rekey(workflow)
        return [*requests]


class _Room:
    """What is free, while a queue is drained, of the instances that serve its model."""

    def __init__(self, instances: Sequence[Instance], ledger: Ledger) -> None:
        self.instances = instances
        self._ledger = ledger

    def candidates(self, request: Request) -> list[Instance]:
        """The instances on which the request can be placed now."""
        need = request.peak_kv_tokens
        return [
            instance
            for instance in self.instances
            if _can_hold(instance, request) and self._ledger.has_room(instance, need)
        ]

    def fits(self, request: Request) -> bool:
        return bool(self.candidates(request))

    def keep_for(self, request: Request) -> bool:
        self.instances = [i for i in self.instances if not _can_hold(i, request)]
        return bool(self.instances)


def _can_hold(instance: Instance, request: Request) -> bool:
    return instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens
