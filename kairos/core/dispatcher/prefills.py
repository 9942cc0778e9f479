"""Prompts computed by another instance than the one that generates the answer."""

from collections.abc import Callable, Container

from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.core.model import Request


class PrefillsElsewhere:
    """Prompts in flight on a separate instance, by request, and the load they cause there.

    Each booking with two instances is added here. False while empty.
    """

    def __init__(
        self,
        instances: Container[str],
        prompts: PromptsUnderWay,
        prefixes: PrefixIndex,
        changed: Callable[[str], None],
    ) -> None:
        """Create an empty index.

        Args:
            instances: ids of present instances.
            prompts: prompts under way.
            prefixes: index of the prefix caches.
            changed: called with the id of an instance whose prompts change.
        """
        self._instances, self._prompts, self._prefixes = instances, prompts, prefixes
        self._changed = changed
        self._places: dict[str, tuple[Request, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def begin(self, request: Request, instance_id: str, answering_id: str, at: int) -> None:
        """Record where the prompt of a request is computed that was just booked for its answer.

        A prefill instance that is not present is ignored.
        """
        until = self._prompts.hide(answering_id, request.id)
        self._changed(answering_id)
        if instance_id in self._instances:
            cached = self._prefixes.begin(request, instance_id, at)
            tokens = request.prompt_tokens - cached
            self._prompts.begin(instance_id, request.id, tokens, until)
            self._places[request.id] = request, instance_id
            self._changed(instance_id)

    def computed(self, request_id: str) -> None:
        """Record that the prompt is computed, since the answer has begun. Idempotent."""
        if (place := self._places.get(request_id)) is not None:
            self._prompts.end(place[1], request_id)
            if place[1] in self._instances:  # nothing is recorded for one that left
                self._changed(place[1])

    def instance_of(self, request_id: str) -> str | None:
        """Return where the prompt is or was computed; None: where the answer is generated."""
        place = self._places.get(request_id)
        return None if place is None else place[1]

    def ended(self, request_id: str, cached: int | None, at: int) -> int | None:
        """Record the end of a call.

        Args:
            request_id: id of the call.
            cached: reported cached tokens of its prompt; None: not reported.
            at: current time.

        Returns:
            The cached tokens that concern the answering instance, if any.
        """
        if request_id not in self._places:
            return cached
        self.computed(request_id)
        request, instance_id = self._places.pop(request_id)
        self._prefixes.end(request, instance_id, 0, cached, at)
        return None
