"""Estimate how many tokens a prompt has, before its engine has counted them.

They are expected from its bytes, four a token, or counted by the model's own tokenizer where one is
configured (`tokenizer.py`). Either is then corrected by what engines counted of earlier prompts: of
the same agent, whose prompts are alike, or, until there are any, of the same tenant's at the same
model, or of all at that model.

The correction has two parts, which are learnt apart: a fixed one, what a template adds to each
prompt, and a proportional one, since languages have more or fewer bytes to a token. It is a
straight line through what was seen, fitted by weighted least squares around a prior line (Bayesian
linear regression): a count of a short prompt says something of the fixed part, and next to nothing
of long prompts. A call weighs less and less the more calls there were since. Not in a paper.
"""

import msgspec

from kairos.core import SharedLru
from kairos.request.body import Body
from kairos.request.tokenizer import PromptCount, Tokenizers

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
    """Estimate of one prompt's tokens.

    `tokens`: the estimate; `expected`: the estimate before the correction; `keys`: of the
    corrections that apply, None where the client sent tokens; `least`: a certain lower bound.
    """

    tokens: int
    expected: int
    keys: tuple[Key, Key, Key] | None = None
    least: int = 0


# The line before anything is seen: tokens that a template adds, and tokens for each expected one;
# how far either may be off, by bytes and by a tokenizer (standard deviations). How far a count is
# off the line: a number of tokens, and a share of what was expected.
_BASE, _SLOPE = 8.0, 1.0
_BASE_OFF, _SLOPE_OFF, _SLOPE_OFF_COUNTED = 128.0, 0.5, 0.02
_OFF, _OFF_SHARE = 4.0, 0.1


class _Line(msgspec.Struct):
    """Weighted sums over observed prompts, from which the line follows."""

    weight: float = 0.0
    x: float = 0.0  # expected
    xx: float = 0.0
    y: float = 0.0  # counted
    xy: float = 0.0

    def add(self, expected: float, counted: float) -> None:
        weight = 1 / (_OFF * _OFF + (_OFF_SHARE * expected) ** 2)
        self.weight = self.weight * _KEPT + weight
        self.x = self.x * _KEPT + weight * expected
        self.xx = self.xx * _KEPT + weight * expected * expected
        self.y = self.y * _KEPT + weight * counted
        self.xy = self.xy * _KEPT + weight * expected * counted

    def corrected(self, expected: float, *, is_counted: bool) -> float:
        """Return the corrected number of tokens for an expected one."""
        slope_off = _SLOPE_OFF_COUNTED if is_counted else _SLOPE_OFF
        base_prior, slope_prior = _BASE_OFF**-2, slope_off**-2
        a, b, d = self.weight + base_prior, self.x, self.xx + slope_prior
        y, xy = self.y + base_prior * _BASE, self.xy + slope_prior * _SLOPE
        base = (y * d - xy * b) / (a * d - b * b)
        if base < 0:  # a template takes nothing away
            return expected * xy / d
        return base + expected * (xy - b * base) / d


class PromptTokens:
    """Estimates of prompts' tokens, corrected by the counts that engines report."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._of_agents: SharedLru[Key, _Line] = SharedLru(AGENTS)
        self._of_tenants: SharedLru[Key, _Line] = SharedLru(MODELS)
        self._of_models: SharedLru[Key, _Line] = SharedLru(MODELS)

    async def estimate(
        self, body: Body, tenant: str, app: str | None, agent: str | None
    ) -> Estimate:
        """Return the estimate, after waiting for a tokenizer if one is used (`tokenizer.py`)."""
        counted = None
        if self.counts(body):
            counted = await self._tokenizers.count(body.model, body.content)
        return self.estimate_at_once(body, tenant, app, agent, counted)

    def counts(self, body: Body) -> bool:
        """Return whether a tokenizer counts the body; else `estimate_at_once` suffices."""
        return not body.prompt_is_counted and self._tokenizers.knows(body.model)

    def estimate_at_once(
        self,
        body: Body,
        tenant: str,
        app: str | None,
        agent: str | None,
        counted: PromptCount | None = None,
    ) -> Estimate:
        """Return the estimate. `counted` is a tokenizer's count, if there is one."""
        if body.prompt_is_counted:
            least = body.least_prompt_tokens
            return Estimate(body.prompt_tokens, body.prompt_tokens, None, least)
        is_counted = counted is not None
        expected = body.prompt_tokens if counted is None else counted.tokens
        model = body.model
        keys = (
            (tenant, model, app, agent, is_counted),
            (tenant, model, is_counted),
            (model, is_counted),
        )
        line = (
            self._of_agents.get(keys[0])
            or self._of_tenants.get(keys[1])
            or self._of_models.get(keys[2])
        )
        tokens = float(expected)
        if line is not None:
            fewest, most = _bounds(expected)
            tokens = min(max(line.corrected(expected, is_counted=is_counted), fewest), most)
        least = 0 if counted is None else counted.least
        return Estimate(max(round(tokens), least), expected, keys, least)

    def learn(self, estimate: Estimate, counted: int) -> None:
        """Learn from an engine's count; implausible ones are ignored."""
        if estimate.keys is None:
            return
        least, most = _bounds(estimate.expected)
        if least <= counted <= most:
            of_agent, of_tenant, of_model = estimate.keys
            tenant = str(of_tenant[0])
            for line in (
                self._of_agents.recall(tenant, of_agent, _Line),
                self._of_tenants.recall(tenant, of_tenant, _Line),
                self._of_models.recall("", of_model, _Line),
            ):
                line.add(estimate.expected, counted)


def _bounds(expected: int) -> tuple[float, float]:
    least = expected * _LEAST
    return least if least > 1 else 1, expected * _MOST + _ADDED
