"""Prompts that instances compute now, as facts tell: they may take all of a step's budget."""

import math
from collections.abc import Collection
from heapq import heapify, heappop, heappush

_FEW = 64  # entries of a heap that may be over, beside as many as are not


class _Prompts:
    """Of one instance."""

    __slots__ = ("by_id", "ends", "now", "now_tokens", "tokens")

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[int, int]] = {}  # tokens, and until when
        self.tokens = 0  # of all of these
        self.now: set[str] = set()  # those that are not taken for computed yet
        self.now_tokens = 0
        self.ends: list[tuple[int, str]] = []  # a heap: until when; some are over

    def begin(self, request_id: str, tokens: int, until: int) -> None:
        self.by_id[request_id] = tokens, until
        self.tokens += tokens
        self.now.add(request_id)
        self.now_tokens += tokens
        heappush(self.ends, (until, request_id))
        if len(self.ends) > 2 * len(self.now) + _FEW:
            self.ends = [(self.by_id[each][1], each) for each in self.now]
            heapify(self.ends)

    def hide(self, request_id: str) -> int:
        tokens, until = self.by_id[request_id]
        self.by_id[request_id] = 0, until
        self.tokens -= tokens
        if request_id in self.now:
            self.now_tokens -= tokens
        return until

    def end(self, request_id: str) -> bool:
        """Whether it was there."""
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
    """By instance and request: tokens to compute, and until when they are taken to be, should no
    first token be told (not all answers are streamed). O(log n) of these, amortised: where none
    is told, all calls of an instance are among them."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompts] = {}
        self.changed: set[str] = set()  # ids of instances where one began or ended; whoever looks
        # at these removes them

    def begin(self, instance_id: str, request_id: str, tokens: int, until: int) -> None:
        there = self._prompts.get(instance_id)
        if there is None:
            there = self._prompts[instance_id] = _Prompts()
        there.begin(request_id, tokens, until)
        self.changed.add(instance_id)

    def hide(self, instance_id: str, request_id: str) -> int:
        """Another instance computes it: here it takes nothing. Returns until when."""
        self.changed.add(instance_id)
        return self._prompts[instance_id].hide(request_id)

    def end(self, instance_id: str, request_id: str) -> None:
        """Its prompt is computed, or its call has ended; said again, nothing happens."""
        there = self._prompts.get(instance_id)
        if there is not None and there.end(request_id):
            self.changed.add(instance_id)

    def requests(self, instance_id: str) -> Collection[str]:
        """Ids of those of which no first token was told."""
        there = self._prompts.get(instance_id)
        return () if there is None else there.by_id

    def tokens(self, instance_id: str) -> int:
        """Of all of them there, however long ago they began."""
        there = self._prompts.get(instance_id)
        return 0 if there is None else there.tokens

    def computing(self, instance_id: str, at: int) -> tuple[int, float]:
        """Tokens of those that are taken to be computed now, and the instant at which some of them
        will be taken for done, if nothing is told before: `inf`, there are none. `at` never runs
        backwards."""
        there = self._prompts.get(instance_id)
        return (0, math.inf) if there is None else there.computing(at)

    def forget(self, instance_id: str) -> None:
        self._prompts.pop(instance_id, None)
