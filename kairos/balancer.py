"""The brain: facts in, commands out. No clock, no I/O, no dice.

A request waits in the queue of its model. After every fact that could make room, the queues are
drained: the first request by policy among all queues whose requests can still be placed is booked
on an instance and dispatched, until nothing more fits. A request that does not fit never holds back
a smaller one behind it, so nothing waits beside an instance that has room for it.
"""

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
    Refuse,
    WorkflowEnded,
)
from kairos.model import Instance, Request
from kairos.scheduler.policies import Policy
from kairos.scheduler.queue import WaitQueue

MAX_WAITING = 10_000


class Balancer:
    """Owns every waiting request and every booking. Only `handle` changes them."""

    def __init__(
        self, policy: Policy, placement: Placement, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self.ledger = Ledger()
        self._policy = policy
        self._placement = placement
        self._max_waiting = max_waiting
        self._queues: dict[str | None, WaitQueue] = {}  # by model; only models that were served
        self._arrivals = count()
        self._models: set[str] = set()  # all models that an instance ever served
        self._at = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

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
        match event:
            case Arrived(request=request):
                if self._knows(request.id):
                    return []
                self._admit(request)
            case Finished() | Failed() | Cancelled():
                self._forget(event.request_id)
            case InstanceJoined(instance=instance):
                self.ledger.join(instance)
                self._models.update(instance.models)
                return self._refuse_stranded() + self._drain()
            case InstanceLeft(instance_id=instance_id):
                self.ledger.leave(instance_id)
                return self._refuse_stranded()
            case FirstToken() | WorkflowEnded():
                return []
        return self._drain()

    def _knows(self, request_id: str) -> bool:
        return request_id in self.ledger or any(request_id in q for q in self._queues.values())

    def _admit(self, request: Request) -> None:
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
            self._queues[model] = WaitQueue(self._policy, self._arrivals)
        self._queues[model].push(request)

    def _forget(self, request_id: str) -> None:
        self.ledger.release(request_id)
        for queue in self._queues.values():
            if request_id in queue:
                queue.remove(request_id)

    def _drain(self) -> list[Command]:
        commands: list[Command] = []
        open_queues = {model: queue for model, queue in self._queues.items() if queue}
        while open_queues:
            model = min(open_queues, key=lambda m: open_queues[m].head_key())
            dispatch = self._place_first(model, open_queues[model])
            if dispatch is not None:
                commands.append(dispatch)
            if dispatch is None or not open_queues[model]:
                del open_queues[model]  # room only shrinks while draining: it need not be retried
        return commands

    def _place_first(self, model: str | None, queue: WaitQueue) -> Dispatch | None:
        need = queue.least_need()
        instances = [i for i in self.ledger.serving(model) if self.ledger.has_room(i, need)]
        if not instances:
            return None
        request = queue.pop_first(lambda r: any(self._fits(i, r) for i in instances))
        if request is None:
            return None
        candidates = [i for i in instances if self._fits(i, request)]
        instance = self._placement.choose(request, candidates, self.ledger)
        self.ledger.book(request, instance)
        return Dispatch(request.id, instance.id)

    def _fits(self, instance: Instance, request: Request) -> bool:
        return _can_hold(instance, request) and self.ledger.has_room(
            instance, request.peak_kv_tokens
        )

    def _refuse_stranded(self) -> list[Command]:
        """Give up on waiting requests that no instance which is left could ever take."""
        refused: list[Command] = []
        for model, queue in self._queues.items():
            serving = self.ledger.serving(model)
            for request in queue.requests():
                if not any(_can_hold(instance, request) for instance in serving):
                    queue.remove(request.id)
                    refused.append(Refuse(request.id, model))
        return refused


def _can_hold(instance: Instance, request: Request) -> bool:
    return instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens
