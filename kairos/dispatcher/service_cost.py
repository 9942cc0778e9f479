"""What a call costs the instance that serves it, in µs of the whole instance: ours.

While it runs it holds a share of the instance: one of so many sequences, or so much of the KV
memory, whichever is more (as in dominant resource fairness, Ghodsi et al., NSDI 2011). While its
prompt is computed, as far as that is not cached, it holds all of it. What is cached is not
computed, but held.
"""

from kairos.dispatcher.booking import Booking
from kairos.dispatcher.speed import Speed
from kairos.events import Finished
from kairos.model import Instance


def service_us(
    booking: Booking,
    instance: Instance,
    speed: Speed,
    took_us: float,
    answer: float,
    running: int,
    finished: Finished | None = None,
) -> float:
    """Of a call that runs for so long, beside so many others, with so long an answer at its end."""
    prompt, cached = booking.request.prompt_tokens, booking.cached_tokens
    if finished is not None:
        prompt = prompt if finished.prompt_tokens is None else finished.prompt_tokens
        cached = cached if finished.cached_tokens is None else finished.cached_tokens
    held = 1 / instance.max_num_seqs
    if instance.kv_tokens:
        held = max(held, (prompt + answer / 2) / instance.kv_tokens)
    computing_us = min(_computing_us(speed, max(0, prompt - cached), running), took_us)
    return computing_us + min(held, 1.0) * (took_us - computing_us)


def _computing_us(speed: Speed, tokens: int, running: int) -> float:
    """Of so many tokens of a prompt. Where prompts are all of one length, what a token adds is not
    known; but a first token takes a step of the engine, and the rest of its time at most is that.
    """
    most_us = max(0.0, speed.prefill_us(tokens) - speed.token_us(running))
    return min(speed.compute_us(tokens), most_us)
