"""Prompts that instances compute now, as facts tell: they may take all of a step's budget."""

import math
from collections.abc import Collection


class PromptsUnderWay:
    """By instance and request: tokens to compute, and until when they are taken to be, should no
    first token be told (not all answers are streamed)."""

    def __init__(self) -> None:
        self._prompts: dict[str, dict[str, tuple[int, int]]] = {}
        self._tokens: dict[str, int] = {}  # by instance id, of all of these

    def begin(self, instance_id: str, request_id: str, tokens: int, until: int) -> None:
        self._prompts.setdefault(instance_id, {})[request_id] = tokens, until
        self._tokens[instance_id] = self._tokens.get(instance_id, 0) + tokens

    def hide(self, instance_id: str, request_id: str) -> int:
        """Another instance computes it: here it takes nothing. Returns until when."""
        tokens, until = self._prompts[instance_id][request_id]
        self._prompts[instance_id][request_id] = 0, until
        self._tokens[instance_id] -= tokens
        return until

    def end(self, instance_id: str, request_id: str) -> None:
        """Its prompt is computed, or its call has ended; said again, nothing happens."""
        begun = self._prompts.get(instance_id, {}).pop(request_id, None)
        if begun is not None:
            self._tokens[instance_id] -= begun[0]

    def requests(self, instance_id: str) -> Collection[str]:
        """Ids of those of which no first token was told."""
        return self._prompts.get(instance_id, {})

    def tokens(self, instance_id: str) -> int:
        """Of all of them there, however long ago they began."""
        return self._tokens.get(instance_id, 0)

    def computing(self, instance_id: str, at: int) -> tuple[int, float]:
        """Tokens of those that are taken to be computed now, and the instant at which some of them
        will be taken for done, if nothing is told before: `inf`, there are none."""
        tokens, until = 0, math.inf
        for each, computed_at in self._prompts.get(instance_id, {}).values():
            if computed_at > at:
                tokens, until = tokens + each, min(until, computed_at)
        return tokens, until

    def forget(self, instance_id: str) -> None:
        self._prompts.pop(instance_id, None)
        self._tokens.pop(instance_id, None)
