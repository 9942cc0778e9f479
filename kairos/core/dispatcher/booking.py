"""Booking of a request in flight on an instance: its progress, its cost, and what its end teaches.

The cost is in µs of the whole instance (not in the paper). While it runs, a call uses a share of
the instance: one of its sequences, or its part of the KV memory, whichever is larger (as in
dominant resource fairness, Ghodsi et al., NSDI 2011). While the uncached part of its prompt is
computed, it uses the whole instance. Cached tokens are not computed, but use memory.
"""

from kairos.core.dispatcher.speed import Speed
from kairos.core.events import Finished
from kairos.core.model import Instance, Request

_ABOUT = 1.25  # up to this ratio of actual to expected tokens, the expected time is used


class Booking:
    """A request in flight on an instance, with its progress."""

    generated: int = 0  # tokens of its answer, as last reported
    first_token_at: int | None = None  # None: not reported
    computed: int = 0  # tokens of its prompt expected to be computed
    computing_us: float = 0.0  # expected time for these
    beside: int = 0  # number of other calls on the instance, assumed for this time
    charged_us: float = 0.0  # cost charged for its service (`service_us`)

    def __init__(self, request: Request, instance_id: str, at: int, cached_tokens: int) -> None:
        self.request = request
        self.instance_id = instance_id
        self.at = at  # when it was dispatched
        self.cached_tokens = cached_tokens  # prompt tokens expected in the prefix cache

    def lengths(self, finished: Finished | None) -> tuple[int, int, int]:
        """Return tokens of the prompt, cached tokens among them, and tokens of the answer.

        As reported by the engine, or else as far as they are known without it.
        """
        prompt, cached, answer = self.request.prompt_tokens, self.cached_tokens, self.generated
        if finished is not None:
            prompt = prompt if finished.prompt_tokens is None else finished.prompt_tokens
            cached = cached if finished.cached_tokens is None else finished.cached_tokens
            answer = answer if finished.completion_tokens is None else finished.completion_tokens
        return prompt, cached, answer

    def used_tokens(self, finished: Finished | None) -> int:
        """Return the tokens of prompt and answer together."""
        prompt, _, answer = self.lengths(finished)
        return prompt + answer


def learn_speed(speed: Speed, booking: Booking, finished: Finished, running: int, at: int) -> None:
    """Learn the speed of an instance from a call that ended.

    An answer whose first token was not reported came in one piece, and teaches nothing about the
    two phases.
    """
    first_at = booking.first_token_at
    if first_at is None:
        return
    prompt, cached, _ = booking.lengths(finished)
    speed.prompt_took(max(0, prompt - cached), first_at - booking.at)
    if finished.completion_tokens is not None and finished.completion_tokens > 1:
        speed.token_took((at - first_at) / (finished.completion_tokens - 1), running)


def service_us(
    booking: Booking,
    instance: Instance,
    speed: Speed,
    took_us: float,
    lengths: tuple[int, int, float],
) -> float:
    """Return the cost of a call that runs for `took_us`.

    `lengths`: tokens at its end, as returned by `Booking.lengths`.
    """
    prompt, cached, answer = lengths
    computing_us, computed = booking.computing_us, prompt - cached
    if not booking.computed / _ABOUT <= computed <= booking.computed * _ABOUT:
        prefill_us = speed.prefill_us(max(0, computed))
        computing_us = speed.computing_us(prefill_us, booking.beside)
    held = 1 / instance.max_num_seqs
    if instance.kv_tokens:
        held = min(1.0, max(held, (prompt + answer / 2) / instance.kv_tokens))
    computing_us = min(computing_us, took_us)
    return computing_us + held * (took_us - computing_us)
