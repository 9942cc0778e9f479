"""Prompts that another instance computes than the one that generates the answer."""

from collections.abc import Callable, Container

from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.core.model import Request


class PrefillsElsewhere:
    """By request: where its prompt is computed, and, until that has ended, how much it takes there.

    Told of each booking that has two instances; false while there is none.
    """

    def __init__(
        self,
        instances: Container[str],
        prompts: PromptsUnderWay,
        prefixes: PrefixIndex,
        changed: Callable[[str], None],
    ) -> None:
        """`instances`: those that are here; `changed` hears the id of one whose prompts change."""
        self._instances, self._prompts, self._prefixes = instances, prompts, prefixes
        self._changed = changed
        self._places: dict[str, tuple[Request, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def begin(self, request: Request, instance_id: str, answering_id: str, at: int) -> None:
        """Of a request that was just booked on the instance that generates the answer. One for its
        prompt that is not here is left out of account."""
        until = self._prompts.hide(answering_id, request.id)
        self._changed(answering_id)
        if instance_id in self._instances:
            cached = self._prefixes.begin(request, instance_id, at)
            tokens = request.prompt_tokens - cached
            self._prompts.begin(instance_id, request.id, tokens, until)
            self._places[request.id] = request, instance_id
            self._changed(instance_id)

    def computed(self, request_id: str) -> None:
        """The answer has begun; said again, nothing happens."""
        if (place := self._places.get(request_id)) is not None:
            self._prompts.end(place[1], request_id)
            if place[1] in self._instances:  # of one that has left nothing is kept
                self._changed(place[1])

    def instance_of(self, request_id: str) -> str | None:
        """Where the prompt of a call is computed, or was; None: where its answer is generated."""
        place = self._places.get(request_id)
        return None if place is None else place[1]

    def ended(self, request_id: str, cached: int | None, at: int) -> int | None:
        """The call has. `cached`: how much of its prompt was found in a cache, where that was told;
        what is left of it to say of the instance that generated the answer is returned."""
        if request_id not in self._places:
            return cached
        self.computed(request_id)
        request, instance_id = self._places.pop(request_id)
        self._prefixes.end(request, instance_id, 0, cached, at)
        return None
