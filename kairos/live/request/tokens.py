"""How many tokens a prompt has, before its engine has counted them.

They are expected from its bytes, four a token, or counted by the model's own tokenizer where one is
configured (`tokenizer.py`). Either is then corrected by what engines counted of earlier prompts: of
the same agent, whose prompts are alike, or, while there is none, of the same tenant's at the same
model, or of all at that model. Bytes, of which
a language has more or fewer to a token, are corrected by a ratio: of the sum of what was counted to
that of what was expected, so that a long prompt says more than a short one. A tokenizer's count
lacks only what the engine's template adds, so it is corrected by the mean difference. A call weighs
less and less the more calls there were since. Ours.
"""

import msgspec

from kairos.live.request.body import Body
from kairos.live.request.tokenizer import Tokenizers
from kairos.shared_lru import SharedLru

AGENTS = 10_000  # whose ratios are kept; those longest unused are forgotten
MODELS = 1_000
_KEPT = 0.9  # of what a call weighs, at the next one
# No prompt has fewer or more tokens than this: bytes are a token each at most, long runs of spaces
# few, and a template may add a long text of its own.
_LEAST, _MOST, _ADDED = 1 / 32, 16, 1024

# tenant, model, app, agent, and whether it was a tokenizer that counted; or tenant, model and that;
# or the model and that alone.
Key = tuple[str | bool | None, ...]


class Estimate(msgspec.Struct, frozen=True):
    """Of one prompt: how many tokens it is taken for, what was expected before the correction, and
    whose prompt it is. `keys` are empty where the client sent tokens."""

    tokens: int
    expected: int
    keys: tuple[Key, Key, Key] | None = None


class _Sums(msgspec.Struct):
    calls: float = 0.0
    expected: float = 0.0
    counted: float = 0.0


class PromptTokens:
    """Estimates, and learns from what engines tell."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._of_agents: SharedLru[Key, _Sums] = SharedLru(AGENTS)
        self._of_tenants: SharedLru[Key, _Sums] = SharedLru(MODELS)
        self._of_models: SharedLru[Key, _Sums] = SharedLru(MODELS)

    async def estimate(
        self, body: Body, tenant: str, app: str | None, agent: str | None
    ) -> Estimate:
        """Waits only for a tokenizer, and for that no longer than `tokenizer.py` says."""
        counted = None
        if self.counts(body):
            counted = await self._tokenizers.count(body.model, body.content)
        return self.estimate_at_once(body, tenant, app, agent, counted)

    def counts(self, body: Body) -> bool:
        """Whether a tokenizer is to be waited for; else `estimate_at_once` says the same."""
        return not body.prompt_is_counted and self._tokenizers.knows(body.model)

    def estimate_at_once(
        self,
        body: Body,
        tenant: str,
        app: str | None,
        agent: str | None,
        counted: int | None = None,
    ) -> Estimate:
        """`counted`: by a tokenizer."""
        if body.prompt_is_counted:
            return Estimate(body.prompt_tokens, body.prompt_tokens)
        is_counted = counted is not None
        expected = body.prompt_tokens if counted is None else counted
        model = body.model
        keys = (
            (tenant, model, app, agent, is_counted),
            (tenant, model, is_counted),
            (model, is_counted),
        )
        sums = (
            self._of_agents.get(keys[0])
            or self._of_tenants.get(keys[1])
            or self._of_models.get(keys[2])
        )
        tokens = expected if sums is None else _correct(expected, sums, is_counted=is_counted)
        return Estimate(tokens, expected, keys)

    def learn(self, estimate: Estimate, counted: int) -> None:
        """`counted`: by the engine. What cannot be is left out."""
        if estimate.keys is None:
            return
        least, most = _bounds(estimate.expected)
        if least <= counted <= most:
            of_agent, of_tenant, of_model = estimate.keys
            tenant = str(of_tenant[0])
            _add(self._of_agents, tenant, of_agent, estimate.expected, counted)
            _add(self._of_tenants, tenant, of_tenant, estimate.expected, counted)
            _add(self._of_models, "", of_model, estimate.expected, counted)


def _correct(expected: int, sums: _Sums, *, is_counted: bool) -> int:
    if is_counted:
        tokens = expected + (sums.counted - sums.expected) / sums.calls
    else:
        tokens = expected * sums.counted / sums.expected
    least, most = _bounds(expected)
    return round(least if tokens < least else most if tokens > most else tokens)


def _bounds(expected: int) -> tuple[float, float]:
    least = expected * _LEAST
    return least if least > 1 else 1, expected * _MOST + _ADDED


def _add(kept: SharedLru[Key, _Sums], tenant: str, key: Key, expected: int, counted: int) -> None:
    sums = kept.get(key)
    if sums is None:
        kept.put(tenant, key, _Sums(1.0, expected, counted))
        return
    sums.calls = sums.calls * _KEPT + 1
    sums.expected = sums.expected * _KEPT + expected
    sums.counted = sums.counted * _KEPT + counted
    kept.touch(tenant, key)
