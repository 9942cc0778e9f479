"""Approximate time of an operator on an idle system, to weigh a pass's savings.

The figures are typical of a small model on one accelerator, and of Teola's timings for embedding
and ranking; an engine's profile and learnt lengths of answers replace them.
"""

from collections.abc import Mapping

import msgspec

from kairos.core import EXPECTED_COMPLETION_TOKENS, EngineProfile
from kairos.workflows.compile.operators import Generation, Operator, Processing, RegisteredCall


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in µs. `answers`: learnt tokens by LLM operator."""

    call_us: float = 10_000
    prefill_token_us: float = 100
    decode_token_us: float = 20_000
    function_us: float = 200_000  # most make requests, too: a web search, a database
    processor_us: float = 50_000  # embed, ingest, search, rerank
    answers: Mapping[str, float] = {}
    times_us: Mapping[str, float] = {}  # of functions and processors, by operator, if learnt

    def operator_us(self, operator: Operator) -> float:
        """Return an operator's time; a body counts once."""
        params = operator.params
        own = 0.0
        if isinstance(params, Generation):
            limit = params.max_tokens or EXPECTED_COMPLETION_TOKENS
            answer = self.answers.get(operator.name, limit)
            own = self.call_us + answer * self.decode_token_us
        elif isinstance(params, RegisteredCall):
            own = self.times_us.get(operator.name, self.function_us)
        elif isinstance(params, Processing):
            own = self.times_us.get(operator.name, self.processor_us)
        return own + sum(map(self.operator_us, operator.body))


TYPICAL_LATENCIES = Latencies()


def measured_latencies(
    profile: EngineProfile, answers: Mapping[str, float], times_us: Mapping[str, float] = {}
) -> Latencies:
    """Return latencies of such engines. `answers`: tokens by operator; `times_us`: as learnt."""
    step = profile.step
    return Latencies(
        call_us=profile.call_us + step.fixed_us + step.weights_us + step.prefill_seq_us,
        prefill_token_us=step.prefill_token_us,
        decode_token_us=step.fixed_us + max(step.weights_us, step.decode_seq_us),
        answers=answers,
        times_us=times_us,
    )
