"""Duration of steps, in whole picoseconds, so that sums over many steps are exact."""

import math
from typing import NamedTuple

from kairos.core import SetupError, StepCost
from kairos.simulate.engine.sequence import Sequence

PS_PER_US = 1_000_000


class Step:
    """The work of a step, as `StepCost` counts it."""

    __slots__ = (
        "attention",
        "begun",
        "chunks",
        "decoding",
        "kv_tokens",
        "prefill_tokens",
        "repeats",
    )

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.begun = 0  # prompts; none is begun anew after a preemption
        self.decoding = 0  # sequences
        self.kv_tokens = 0
        self.attention = 0
        # What was not counted together with all that decodes: (sequence, its tokens).
        self.chunks: list[tuple[Sequence, int]] = []
        self.repeats = 1  # how many steps like it follow each other, if nothing is told

    def add_prefill(self, sequence: Sequence, tokens: int) -> None:
        """Add a sequence's prefill of `tokens`; `computed` already includes them."""
        self.chunks.append((sequence, tokens))
        self.prefill_tokens += tokens
        self.attention += tokens * sequence.computed - tokens * (tokens - 1) // 2

    def add_decode(self, sequence: Sequence) -> None:
        self.chunks.append((sequence, 1))
        self.decoding += 1
        self.kv_tokens += sequence.computed


class Cost(NamedTuple):
    """The coefficients of a `StepCost`."""

    fixed: int
    weights: int
    prefill_token: int
    prefill_seq: int
    decode_seq: int
    kv_token: int
    attention: int

    @classmethod
    def of(cls, cost: StepCost, factor: float = 1.0) -> "Cost":
        """Return the cost with all times multiplied by `factor`.

        Raises:
            SetupError: A step would take no time, a negative time, or for ever.
        """
        given = (
            cost.fixed_us,
            cost.weights_us,
            cost.prefill_token_us,
            cost.prefill_seq_us,
            cost.decode_seq_us,
            cost.kv_token_us,
            cost.attention_us,
        )
        if not all(0 <= us * factor < math.inf for us in given):
            raise SetupError(f"steps must take a time from 0 up: {cost}, {factor} times")
        made = cls(*[round(us * factor * PS_PER_US) for us in given])
        if not made.fixed + max(made.weights, min(made.prefill_token, made.decode_seq)):
            raise SetupError(f"a step would take no time: {cost}, {factor} times")
        return made

    def stretch(self, step: Step) -> "Stretch":
        """The step, as often as it repeats. Each sequence reads one token more each time."""
        arithmetic = self.prefill_token * step.prefill_tokens + self.decode_seq * step.decoding
        memory = self.kv_token * step.kv_tokens + self.attention * step.attention
        first = self.fixed + max(self.weights, arithmetic) + self.prefill_seq * step.begun + memory
        return Stretch(step.repeats, first, self.kv_token * step.decoding)


class Stretch(NamedTuple):
    """Consecutive steps, each taking a little longer than the one before."""

    steps: int
    first: int  # how long it takes; never less than `growth`
    growth: int

    def lasts(self, steps: int) -> int:
        """Return the duration of the first `steps` of them."""
        return steps * self.first + self.growth * (steps * (steps - 1) // 2)

    def ended_within(self, time: int) -> int:
        """Return how many have ended after this time."""
        if time < self.first:
            return 0
        if time >= self.lasts(self.steps):
            return self.steps
        if not self.growth:
            return time // self.first
        # The greatest n with lasts(n) <= time: a root of a quadratic equation, rounded down.
        twice = 2 * self.first - self.growth
        root = math.isqrt(twice * twice + 8 * self.growth * time)
        return (root - twice) // (2 * self.growth)

    def begun_before(self, time: int) -> "Stretch":
        """Return only the steps that begin before this time has passed."""
        begun = self.ended_within(time - 1) + 1 if time > 0 else 0
        return Stretch(min(begun, self.steps), self.first, self.growth)

    def after(self, steps: int) -> "Stretch":
        """Return the remaining steps after `steps` have ended."""
        return Stretch(self.steps - steps, self.first + self.growth * steps, self.growth)
