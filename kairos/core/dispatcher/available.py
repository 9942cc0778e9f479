"""Capacity of instances: what they could ever take, and what they can take now."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from kairos.core.dispatcher.demand import can_hold
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.placement import Placement
from kairos.core.errors import ModelNotFound, NeverFits, NoInstance
from kairos.core.model import Instance, Request

Tried = Mapping[str, Set[str]]  # by request id: ids of instances that failed to answer it
_NOWHERE: Tried = {}


class AvailableInstances:
    """Free capacity of the instances that serve a model, while its queue is drained."""

    def __init__(
        self,
        instances: Sequence[Instance],
        ledger: Ledger,
        placement: Placement,
        at: int,
        tried: Tried = _NOWHERE,
    ) -> None:
        self.instances, self._busy = ledger.busy.split(instances, at)
        self._ledger, self._placement, self._at, self._tried = ledger, placement, at, tried
        self._headroom: float | None = None  # None: not computed yet
        self._chosen: tuple[str, Instance] | None = None
        self._one_by_one = False  # whether the placement can only judge requests one by one
        self.may_reserve, self.has_reserved = True, False

    def fits(self, request: Request) -> bool:
        return self.choose(request) is not None

    def refused(self, requests: Sequence[Request]) -> int:
        """Return how many of these, counted from the first, are known to fit nowhere."""
        if self._one_by_one:
            return 0
        longest = max((each.prompt_tokens for each in requests), default=0)
        if not self._tried and longest <= min(self._known_headroom(), self._ledger.served.smallest):
            return self._refused(requests)  # the common case
        smallest, tried = self._ledger.served.smallest, self._tried
        known = len(requests)
        worth: list[Request] = []  # requests that may fit
        places: list[int] = []  # their indices
        for place, each in enumerate(requests):
            if each.prompt_tokens > smallest or each.id in tried:
                known = place
                break
            if self._may_fit(each):
                worth.append(each)
                places.append(place)
        refused = self._refused(worth)
        return places[refused] if refused < len(worth) else known

    def _refused(self, requests: Sequence[Request]) -> int:
        if not requests:
            return 0
        found = self._placement.refused(requests, self.instances, self._busy, self._at)
        if found is None:
            self._one_by_one = True
            return 0
        refused, chosen = found
        if chosen is not None:
            self._chosen = requests[refused].id, chosen
        return refused

    def choose(self, request: Request) -> Instance | None:
        """Return the instance for the request now, or None. Cached for a repeated query."""
        if self._chosen is not None and self._chosen[0] == request.id:
            return self._chosen[1]
        able = self._able(request) if self._may_fit(request) else []
        if not able:
            return None
        busy = self._busy
        if request.id in self._tried:
            busy = [each for each in busy if could_take(each, request, self._tried)]
        chosen = self._placement.choose(request, able, busy, self._at)
        self._chosen = None if chosen is None else (request.id, chosen)
        return chosen

    def _able(self, request: Request) -> Sequence[Instance]:
        """Return the instances that could hold the request if they were empty."""
        if request.prompt_tokens <= self._ledger.served.smallest and request.id not in self._tried:
            return self.instances
        return [i for i in self.instances if could_take(i, request, self._tried)]

    def _may_fit(self, request: Request) -> bool:
        """Return whether the request may fit, by a quick check."""
        if request.prompt_tokens <= self._known_headroom():
            return True
        return (
            self._ledger.prefixes.is_in_use(request)
            or self._ledger.retention.kept_for(request, self._at) is not None
        )

    def _known_headroom(self) -> float:
        if self._headroom is None:
            self._headroom = self._placement.headroom(self.instances, self._at)
        return self._headroom

    def expected_back(self) -> Iterator[str]:
        return self._placement.expected_back(self._at)

    def reserve(self, request: Request) -> None:
        """Reserve for a request that does not fit now: later placements must not delay it."""
        able = self._able(request)
        if able and self.may_reserve:
            self.has_reserved = True
            self._placement.reserve(request, able, self._at)

    def exclude_for(self, request: Request) -> bool:
        tried = self._tried
        self.instances = [i for i in self.instances if not could_take(i, request, tried)]
        self._busy = [i for i in self._busy if not could_take(i, request, tried)]
        self._headroom = self._chosen = None
        return bool(self.instances)


def check_servable(request: Request, ledger: Ledger, known_models: Set[str]) -> None:
    """Check that some present instance could ever take the request.

    Raises:
        NoInstance: no instance is present that could serve the model.
        ModelNotFound: the model was never served.
        NeverFits: the prompt exceeds the KV memory of every instance.
    """
    model = request.model
    serving = ledger.served.serving(model)
    if not serving:
        if model is None or model in known_models or not ledger.instances:
            raise NoInstance(model)
        raise ModelNotFound(model, sorted(known_models))
    largest = most_kv_tokens(serving)
    if request.least_prompt_tokens > largest:
        raise NeverFits(request.id, request.least_prompt_tokens, int(largest))


def most_kv_tokens(serving: Iterable[Instance]) -> float:
    """Return the KV memory of the largest instance, in tokens; `inf` if one does not report it."""
    sizes = [math.inf if each.kv_tokens is None else each.kv_tokens for each in serving]
    return max(sizes, default=math.inf)


def within_memory(request: Request, serving: Iterable[Instance]) -> Request:
    """Return the request with its estimated prompt length capped to the largest instance's memory.

    An estimated length refuses no call: the engine may count fewer tokens, and reports it itself if
    they are too many. Such a call runs alone on its instance.
    """
    largest = most_kv_tokens(serving)
    if request.prompt_tokens <= largest or request.least_prompt_tokens > largest:
        return request
    return msgspec.structs.replace(request, prompt_tokens=max(1, int(largest)))


def could_take(instance: Instance, request: Request, tried: Tried = _NOWHERE) -> bool:
    """Return whether the request could run on the instance if that were empty."""
    return can_hold(instance, request) and instance.id not in tried.get(request.id, ())


def stranded(
    requests: Iterable[Request], serving: Sequence[Instance], tried: Tried = _NOWHERE
) -> list[Request]:
    """Return the requests that none of the instances serving their model could ever take."""
    return [each for each in requests if not any(could_take(i, each, tried) for i in serving)]
