"""What is free for the requests of one queue, while it is drained."""

from collections.abc import Sequence

from kairos.dispatcher.ledger import Ledger
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
