"""What instances could take, and what they can take now."""

from collections.abc import Iterable, Sequence, Set

from kairos.dispatcher.ledger import Ledger
from kairos.errors import ModelNotFound, NeverFits, NoInstance
from kairos.model import Instance, Request


class Room:
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
            if can_hold(instance, request) and self._ledger.has_room(instance, need)
        ]

    def fits(self, request: Request) -> bool:
        return bool(self.candidates(request))

    def keep_for(self, request: Request) -> bool:
        self.instances = [i for i in self.instances if not can_hold(i, request)]
        return bool(self.instances)


def can_hold(instance: Instance, request: Request) -> bool:
    return instance.kv_tokens is None or request.prompt_tokens <= instance.kv_tokens


def check_servable(request: Request, ledger: Ledger, known_models: Set[str]) -> None:
    """`known_models`: all that an instance ever served.

    Raises:
        NoInstance, ModelNotFound, NeverFits: no instance that is here could ever take the request.
    """
    model = request.model
    serving = ledger.serving(model)
    if not serving:
        if model is None or model in known_models or not ledger.instances:
            raise NoInstance(model)
        raise ModelNotFound(model, sorted(known_models))
    if not any(can_hold(instance, request) for instance in serving):
        largest = max(instance.kv_tokens or 0 for instance in serving)
        raise NeverFits(request.id, request.prompt_tokens, largest)


def stranded(requests: Iterable[Request], serving: Sequence[Instance]) -> list[Request]:
    """Those that none of the instances which serve their model could ever take."""
    return [each for each in requests if not any(can_hold(i, each) for i in serving)]
