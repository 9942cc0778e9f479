"""A day of arrivals with the burstiness of the Azure trace of conversations, which is of one hour.

The trace's gaps, from a place that the seed chooses and in their order, are gaps of a clock that
runs as fast as the day is busy: by night slowly, at its fastest at 16 h. So the burstiness is the
trace's, stretched in time to the day's rate, and the day's curve is ours: what is published of
production traces has it (a trough of about a sixth of the peak), but no trace of a day is at hand.
"""

import math
from itertools import pairwise
from pathlib import Path
from random import Random

from experiments.recordings import data_directory
from kairos.core import SECOND
from kairos.simulate.workload.azure_trace import read_trace

TRACE = Path("azure") / "AzureLLMInferenceTrace_conv.csv.gz"
SWING = 0.7  # of the mean rate, up and down
BUSIEST_H = 16
_PIECE_S = 60.0  # in which the rate stands still


def rate_at(at_s: float, mean_per_s: float) -> float:
    """Arrivals per second, so long after midnight."""
    turn = 2 * math.pi * (at_s / 3_600 - BUSIEST_H) / 24
    return mean_per_s * (1 + SWING * math.cos(turn))


def day(seed: int, mean_per_s: float, hours: float = 24.0) -> list[int]:
    """Instants in µs from midnight. `mean_per_s`: over 24 hours."""
    at_us = [row.at_us for row in read_trace(data_directory() / TRACE)]
    mean_us = at_us[-1] / (len(at_us) - 1)
    gaps = [(later - earlier) / mean_us for earlier, later in pairwise(at_us)]
    place = Random(seed).randrange(len(gaps))  # noqa: S311  (a workload, no secret)
    found: list[int] = []
    at_s, until_s = 0.0, hours * 3_600
    while True:
        left = gaps[place]  # in means
        place = (place + 1) % len(gaps)
        while True:
            end_s = (at_s // _PIECE_S + 1) * _PIECE_S
            rate = rate_at(end_s - _PIECE_S / 2, mean_per_s)
            if left <= (end_s - at_s) * rate:
                at_s += left / rate
                break
            left -= (end_s - at_s) * rate
            at_s = end_s
        if at_s >= until_s:
            return found
        found.append(round(at_s * SECOND))
