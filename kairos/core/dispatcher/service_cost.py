"""Cost of a call for its instance, in µs of the whole instance. Not in the paper.

While it runs, a call uses a share of the instance: one of its sequences, or its part of the KV
memory, whichever is larger (as in dominant resource fairness, Ghodsi et al., NSDI 2011). While the
uncached part of its prompt is computed, it uses the whole instance. Cached tokens are not computed,
but use memory.
"""

from kairos.core.dispatcher.booking import Booking
from kairos.core.dispatcher.speed import Speed
from kairos.core.model import Instance

_ABOUT = 1.25  # up to this ratio of actual to expected tokens, the expected time is used


def service_us(
    booking: Booking,
    instance: Instance,
    speed: Speed,
    took_us: float,
    lengths: tuple[int, int, float],
) -> float:
    """Return the cost of a call that runs for `took_us`.

    Args:
        booking: its booking.
        instance: where it runs.
        speed: speed of the instance.
        took_us: duration of the call.
        lengths: tokens at its end, as returned by `Booking.lengths`.
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
