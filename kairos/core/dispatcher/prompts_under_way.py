"""Prompts that instances compute now, as known from facts; they may use a step's whole budget.

A prompt is computed by the instance that generates the answer, or by another one.
"""

import math
from collections.abc import Callable, Collection, Container
from heapq import heapify, heappop, heappush

from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.model import Request

_FEW = 64  # outdated entries of a heap that are tolerated in addition to as many current ones


class _Prompts:
    """Prompts of one instance."""

    __slots__ = ("by_id", "ends", "now", "now_tokens", "tokens")

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[int, int]] = {}  # tokens, and when it counts as computed
        self.tokens = 0  # sum over all of these
        self.now: set[str] = set()  # prompts that do not count as computed yet
        self.now_tokens = 0
        self.ends: list[tuple[int, str]] = []  # heap of the ends; some are outdated

    def add_prompt(self, request_id: str, tokens: int, until: int) -> None:
        self.by_id[request_id] = tokens, until
        self.tokens += tokens
        self.now.add(request_id)
        self.now_tokens += tokens
        heappush(self.ends, (until, request_id))
        if len(self.ends) > 2 * len(self.now) + _FEW:
            self.ends = [(self.by_id[each][1], each) for each in self.now]
            heapify(self.ends)

    def hide_prompt(self, request_id: str) -> int:
        tokens, until = self.by_id[request_id]
        self.by_id[request_id] = 0, until
        self.tokens -= tokens
        if request_id in self.now:
            self.now_tokens -= tokens
        return until

    def remove_prompt(self, request_id: str) -> bool:
        """Remove a prompt, and return whether it was there."""
        begun = self.by_id.pop(request_id, None)
        if begun is not None:
            self.tokens -= begun[0]
            self._computed(request_id, begun[0])
        return begun is not None

    def _computed(self, request_id: str, tokens: int) -> None:
        if request_id in self.now:
            self.now.remove(request_id)
            self.now_tokens -= tokens

    def computing(self, at: int) -> tuple[int, float]:
        ends = self.ends
        while ends:
            until, request_id = ends[0]
            tokens, ends_at = self.by_id.get(request_id, (0, -1))
            if ends_at == until:
                if until > at:
                    return self.now_tokens, until
                self._computed(request_id, tokens)
            heappop(ends)
        return 0, math.inf


class PromptsUnderWay:
    """Prompts by instance and request, with their tokens and the time they count as computed.

    That time matters if no first token is reported (not all answers are streamed). O(log n)
    amortised; if no first tokens are reported, n is all calls of an instance.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompts] = {}
        # Ids of instances where a prompt began or ended; the reader removes them.
        self.changed: set[str] = set()

    def add_prompt(self, instance_id: str, request_id: str, tokens: int, until: int) -> None:
        there = self._prompts.get(instance_id)
        if there is None:
            there = self._prompts[instance_id] = _Prompts()
        there.add_prompt(request_id, tokens, until)
        self.changed.add(instance_id)

    def hide_prompt(self, instance_id: str, request_id: str) -> int:
        """Record that another instance computes the prompt; return when it counts as computed."""
        self.changed.add(instance_id)
        return self._prompts[instance_id].hide_prompt(request_id)

    def remove_prompt(self, instance_id: str, request_id: str) -> None:
        """Record that a prompt is computed, or that its call has ended. Idempotent."""
        there = self._prompts.get(instance_id)
        if there is not None and there.remove_prompt(request_id):
            self.changed.add(instance_id)

    def requests(self, instance_id: str) -> Collection[str]:
        """Return the ids of calls without a reported first token."""
        there = self._prompts.get(instance_id)
        return () if there is None else there.by_id

    def tokens(self, instance_id: str) -> int:
        """Return the tokens of all prompts there, however long ago they began."""
        there = self._prompts.get(instance_id)
        return 0 if there is None else there.tokens

    def computing(self, instance_id: str, at: int) -> tuple[int, float]:
        """Return the tokens of prompts being computed now, and when the next one counts as done.

        The time is `inf` without prompts. `at` must not decrease between calls.
        """
        there = self._prompts.get(instance_id)
        return (0, math.inf) if there is None else there.computing(at)

    def forget_instance(self, instance_id: str) -> None:
        self._prompts.pop(instance_id, None)


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

    def begin_prefill(self, request: Request, instance_id: str, answering_id: str, at: int) -> None:
        """Record where the prompt of a request is computed that was just booked for its answer.

        A prefill instance that is not present is ignored.
        """
        until = self._prompts.hide_prompt(answering_id, request.id)
        self._changed(answering_id)
        if instance_id in self._instances:
            cached = self._prefixes.begin_use(request, instance_id, at)
            tokens = request.prompt_tokens - cached
            self._prompts.add_prompt(instance_id, request.id, tokens, until)
            self._places[request.id] = request, instance_id
            self._changed(instance_id)

    def finish_prefill(self, request_id: str) -> None:
        """Record that the prompt is computed, since the answer has begun. Idempotent."""
        if (place := self._places.get(request_id)) is not None:
            self._prompts.remove_prompt(place[1], request_id)
            if place[1] in self._instances:  # nothing is recorded for one that left
                self._changed(place[1])

    def instance_of(self, request_id: str) -> str | None:
        """Return where the prompt is or was computed; None: where the answer is generated."""
        place = self._places.get(request_id)
        return None if place is None else place[1]

    def forget_prefill(self, request_id: str, cached: int | None, at: int) -> int | None:
        """Record the end of a call. `cached`: reported cached tokens of its prompt, if any.

        Return the cached tokens that concern the answering instance, if any.
        """
        if request_id not in self._places:
            return cached
        self.finish_prefill(request_id)
        request, instance_id = self._places.pop(request_id)
        self._prefixes.end_use(request, instance_id, 0, cached, at)
        return None
