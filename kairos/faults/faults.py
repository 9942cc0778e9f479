"""What follows from failures: which instances are left alone, and which calls are refused."""

from kairos.errors import CallBreaksEngines
from kairos.events import Bounced, Cancelled, Failed, Finished
from kairos.faults.attribution import FaultAttribution
from kairos.faults.circuits import Circuits
from kairos.learnt import agent_key
from kairos.model import Instance, Request

# The rate of failures from which on an instance is left alone. Of one that served its latest calls
# it takes three calls in a row; of one of which nothing is known, or nothing of late, one.
UNTRUSTED = 0.4


class Faults:
    """Of one balancer."""

    def __init__(self) -> None:
        self.circuits = Circuits()
        self._attribution = FaultAttribution()
        # Under what a call here is suspected, by id; of those that are no suspects, nothing.
        self._keys: dict[str, int | str] = {}
        self._opened_by: dict[str, int | str] = {}  # the latest suspect, by instance id

    def check(self, body: int | None, at: int) -> None:
        """One that arrives.

        Raises:
            CallBreaksEngines: it is known to.
        """
        if body is None or not self._attribution.is_poisonous(body, at):
            return
        if not self._attribution.is_doubtful(body):
            raise CallBreaksEngines

    def arrived(self, request_id: str, body: int | None) -> None:
        if body is not None:
            self._keys[request_id] = body

    def learn(
        self,
        event: Finished | Failed | Cancelled | Bounced,
        request: Request,
        instance: Instance,
        at: int,
    ) -> None:
        """How a call ended that the instance had, or that it bounced."""
        if type(event) is Finished:
            self._served(request, instance, at)
        elif type(event) is Bounced:
            self._failed(request, event.body, instance.id, at, about_itself=event.about_itself)
        elif type(event) is Failed and event.by_instance:
            self._failed(request, event.body, instance.id, at)

    def _served(self, request: Request, instance: Instance, at: int) -> None:
        self._attribution.served(instance.id, at)
        if self._attribution.callers:
            self._attribution.well(agent_key(request))
        if self.circuits:
            self.circuits.answered(instance.id, at, instance.max_num_seqs)
        if request.id in self._keys:
            self._attribution.cleared(self._keys[request.id])

    def _failed(
        self,
        request: Request,
        body: int | None,
        instance_id: str,
        at: int,
        *,
        about_itself: bool = False,
    ) -> None:
        attribution, circuits = self._attribution, self.circuits
        key = self._keys[request.id] = request.id if body is None else body
        was_tried = circuits.is_on_trial(instance_id, at)
        share = attribution.failed(
            key, agent_key(request), instance_id, at, about_itself=about_itself
        )
        if attribution.is_poisonous(key, at):
            for each in attribution.condemned(key, at):
                self._acquit(each, key, at)
        elif share > 0.5 if was_tried else attribution.rate(instance_id, at) > UNTRUSTED:
            circuits.open(instance_id, at)
            self._opened_by[instance_id] = key

    def is_poisonous(self, request_id: str, at: int) -> bool:
        key = self._keys.get(request_id)
        return key is not None and self._attribution.is_poisonous(key, at)

    def ended(self, request_id: str) -> None:
        """It is here no more."""
        if self._keys:
            self._keys.pop(request_id, None)

    def left(self, instance_id: str) -> None:
        self.circuits.forget(instance_id)
        self._opened_by.pop(instance_id, None)
        self._attribution.forget(instance_id)

    def _acquit(self, instance_id: str, key: int | str, at: int) -> None:
        """Of what a poisonous call did there."""
        is_trusted = self._attribution.rate(instance_id, at) <= UNTRUSTED
        if is_trusted and self._opened_by.get(instance_id) == key:
            self.circuits.forget(instance_id)
