"""What a call costs the instance that serves it, in µs of the whole instance: ours.

While it runs it holds a share of the instance: one of so many sequences, or so much of the KV
memory, whichever is more (as in dominant resource fairness, Ghodsi et al., NSDI 2011). While its
prompt is computed, as far as that is not cached, it holds all of it. What is cached is not
computed, but held.
"""

from kairos.core.dispatcher.booking import Booking
from kairos.core.dispatcher.speed import Speed
from kairos.core.model import Instance

_ABOUT = 1.25  # times as many tokens, or as few, take as long as was expected


def service_us(
    booking: Booking,
    instance: Instance,
    speed: Speed,
    took_us: float,
    lengths: tuple[int, int, float],
) -> float:
    """Of a call that runs for so long; `lengths` at its end, as `Booking` has them."""
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
