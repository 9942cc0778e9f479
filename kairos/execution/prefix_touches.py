"""Which static beginnings of prompts engines are to compute while they wait for rows: before the
first batch all; before a later one those that engines are not likely to hold any more, so that
their cache has each used again before it is dropped.

An engine drops what was used longest ago. Since calls used a beginning last, the run's calls have
written so many tokens: once that is half of the memory, it may be gone, for other instances of the
pool are not equally full. A touch of one that is there takes a step of an engine that idles. Where
others use the engines, too, it may be gone all the same; then its first call computes it again.
"""

from collections.abc import Iterator, Sequence

from kairos.execution.commands import TouchPrefix
from kairos.execution.facts import CallAnswered
from kairos.execution.limits import FlowLimits
from kairos.plan.passes.static_prefixes import StaticPrefix

_UNKNOWN_KV_TOKENS = 100_000  # of engines that do not tell how much they hold
_SAFE = 0.5  # of the memory


class PrefixTouches:
    """Owns when each was used last, in tokens that calls have written."""

    def __init__(self, prefixes: Sequence[StaticPrefix], limits: FlowLimits) -> None:
        is_limited = limits.max_calls is not None or limits.max_tokens is not None
        self._prefixes = () if is_limited else prefixes  # a budget is for what is asked
        self._of = {name: at for at, each in enumerate(self._prefixes) for name in each.operators}
        self._used_at: dict[int, int] = {}
        self._written = 0
        self._safe_tokens = _SAFE * (limits.kv_tokens or _UNKNOWN_KV_TOKENS)

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """A call of it has used its beginning."""
        self._written += fact.prompt_tokens - fact.cached_tokens + fact.completion_tokens
        if (at := self._of.get(operator)) is not None:
            self._used_at[at] = self._written

    def due(self) -> Iterator[TouchPrefix]:
        """Engines wait for rows. What is told here counts as used."""
        for at, each in enumerate(self._prefixes):
            used_at = self._used_at.get(at)
            if used_at is None or self._written - used_at >= self._safe_tokens:
                self._used_at[at] = self._written
                yield TouchPrefix(each.operators[0], each.model, each.body)
