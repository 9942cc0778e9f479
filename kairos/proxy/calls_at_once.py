"""Immediate dispatch of calls that need no KV memory.

Counting a prompt's tokens, and reading, cancelling or deleting stored responses need no memory and
no step of the model, so such calls neither wait in a queue nor are packed. They produce no facts
either: quotas and budgets cover calls that engines compute.
"""

from kairos.core import (
    MAX_RETRIES,
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
    ModelNotFound,
    NoInstance,
    Refuse,
    Request,
    WorkflowEnded,
)
from kairos.proxy.calls_in_flight import CallsInFlight


class _Tried:
    """Instances that a call was sent to, and its failures.

    A 404 is not a failure of the instance.
    """

    def __init__(self) -> None:
        self.instances: set[str] = set()
        self.faults = 0


class CallsAtOnce:
    """Choice of an instance for such calls, by what this process knows. A `FactSink`."""

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._sink: FactSink | None = None
        self._instances: dict[str, Instance] = {}
        self._models: set[str] = set()  # that an instance ever served
        self._requests: dict[str, Request] = {}  # under way, by id
        self._tried: dict[str, _Tried] = {}  # by id of the call

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
            request = event.request
            instance_id = self._choose(request)
            if instance_id is None:
                model = request.model
                if model is not None and self._instances and model not in self._models:
                    raise ModelNotFound(model, sorted(self._models))
                raise NoInstance(model)
            self._requests[request.id] = request
            self._go(request, instance_id)
        elif isinstance(event, Bounced):
            request = self._requests[event.request_id]
            instance_id = self._choose(request)
            tried = self._tried[request.id]
            tried.faults += event.by_instance
            if instance_id is None or tried.faults > MAX_RETRIES:
                self._calls.refuse(Refuse(request.id, request.model, "no_other"))
            else:
                self._go(request, instance_id)
        elif isinstance(event, Finished | Failed | Cancelled):
            self._requests.pop(event.request_id, None)
            self._tried.pop(event.request_id, None)
        elif isinstance(event, WorkflowEnded) and self._sink is not None:
            self._sink.feed(event)

    def _go(self, request: Request, instance_id: str) -> None:
        self._tried.setdefault(request.id, _Tried()).instances.add(instance_id)
        self._calls.dispatch(Dispatch(request.id, instance_id))

    def _choose(self, request: Request) -> str | None:
        tried = self._tried.get(request.id, _Tried()).instances
        able = [
            each.id
            for each in self._instances.values()
            if each.id not in tried and (request.model is None or request.model in each.models)
        ]
        return min(able, key=self._calls.running, default=None)
