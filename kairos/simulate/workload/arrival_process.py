"""Arrival processes with the burstiness of production traces.

The processes like the traces are Cox processes: Poisson, with a rate that itself varies at random.
With a rate of mean L and autocovariance s² L² e^(-t/T), counts in windows of length w have the
index of dispersion (variance / mean)

    IoD(w) = 1 + 2 s² L T (1 - (1 - e^(-w/T)) T/w)

which is 1 for short windows and grows to 1 + 2 s² L T. Two such rates come near the two Azure
traces of 2023. Their parameters are the least squares fit to the logarithms of CV (of the gaps) and
of IoD at 1, 10 and 60 s:

- conversations: a log-normal rate, the exponential of an Ornstein-Uhlenbeck process. It varies
  slowly, so gaps are a mixture of exponentials and CV² = 1 + 2 s². The fit gives CV 1.05 and IoD
  1.31/3.97/16.0, where the trace has 1.09 and 1.39/3.86/16.1.
- code: a rate that is switched on and off (an interrupted Poisson process). With a share p of time
  on, s² = (1-p)/p and 1/T = 1/on + 1/off. Gaps are independent, so CV² = IoD(∞) = 1 + 2 s² L T. The
  fit gives CV 13.4 and IoD 12.2/79.9/156, where the trace has 13.15 and 13.2/71.6/164.

In addition there is `gamma:CV`, whose gaps are independent and gamma distributed with a chosen CV:
regular below 1, a Poisson process at 1, bursty above it. Bursts are shorter than the traces' at the
same CV: in long windows its index of dispersion is CV².

A series is made at the trace's own rate and then scaled in time to the wanted one: all gaps are
multiplied, which leaves CV and the shape of bursts as they were. Taking every n-th arrival instead
would give a smoother process than the trace.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise, takewhile
from random import Random
from statistics import fmean, pstdev, pvariance
from typing import NamedTuple, TypedDict

from kairos.core import SECOND, SetupError

WINDOWS_S = (1, 10, 60)
MOST_ARRIVALS = 10_000_000  # of a series
RATE_PER_S = 1e-6, 1e6  # least and most: beyond, instants are no longer numbers
ENOUGH = 20  # gaps, and windows: below, a variance is off by a third or more


class RatePiece(NamedTuple):
    """A stretch of time with a constant rate of arrivals."""

    duration_s: float
    rate_per_s: float


class ArrivalModel(NamedTuple):
    """A process of arrivals at its own rate, and the figures of the trace that it stands for."""

    rate_per_s: float
    cv: float
    index_of_dispersion: dict[int, float | None]  # window, s -> where it is known
    instants_s: Callable[[Random], Iterator[float]]  # of the arrivals, without end


def _constant_rate(_random: Random, rate_per_s: float) -> Iterator[RatePiece]:
    yield RatePiece(math.inf, rate_per_s)


def _log_normal_rate(
    random: Random, rate_per_s: float, *, relative_std: float, correlation_s: float
) -> Iterator[RatePiece]:
    step_s = 1.0  # short beside the correlation time, so the rate may stand still for so long
    sigma = math.sqrt(math.log1p(relative_std**2))
    keep = math.exp(-step_s / correlation_s)
    level = random.gauss(0, sigma)
    while True:
        yield RatePiece(step_s, rate_per_s * math.exp(level - sigma**2 / 2))
        level = keep * level + math.sqrt(1 - keep**2) * random.gauss(0, sigma)


def _on_off_rate(
    random: Random, rate_per_s: float, *, on_s: float, off_s: float
) -> Iterator[RatePiece]:
    while True:
        yield RatePiece(random.expovariate(1 / on_s), rate_per_s * (on_s + off_s) / on_s)
        yield RatePiece(random.expovariate(1 / off_s), 0.0)


def _cox(
    pieces: Callable[[Random, float], Iterator[RatePiece]], rate_per_s: float, random: Random
) -> Iterator[float]:
    """A process whose rate is constant in each piece."""
    start_s = 0.0
    for duration_s, piece_rate_per_s in pieces(random, rate_per_s):
        now_s, end_s = start_s, start_s + duration_s
        while piece_rate_per_s > 0:
            # An exponential gap has no memory: it may begin anew where the rate changes.
            now_s += random.expovariate(piece_rate_per_s)
            if now_s >= end_s:
                break
            yield now_s
        start_s = end_s


def _gamma(cv: float, random: Random) -> Iterator[float]:
    """Gaps of mean 1 s with this CV, as far as a float can tell their sum."""
    shape = cv**-2
    now_s = 0.0
    while True:
        yield now_s
        now_s += random.gammavariate(shape, 1 / shape)


MODELS = {
    "poisson": ArrivalModel(
        1.0, 1.0, {1: 1.0, 10: 1.0, 60: 1.0}, partial(_cox, _constant_rate, 1.0)
    ),
    "azure-conv": ArrivalModel(
        5.53,
        1.09,
        {1: 1.39, 10: 3.86, 60: 16.1},
        partial(_cox, partial(_log_normal_rate, relative_std=0.236, correlation_s=92.0), 5.53),
    ),
    "azure-code": ArrivalModel(
        2.57,
        13.15,
        {1: 13.2, 10: 71.6, 60: 164.0},
        partial(_cox, partial(_on_off_rate, on_s=9.27, off_s=42.2), 2.57),
    ),
}
GAMMA_CV = 0.01, 100.0  # least and most: beyond, shapes are too extreme for gaps in floats


def arrival_model(name: str) -> ArrivalModel:
    """Return the process with this name: one of `MODELS`, or `gamma:CV`.

    Raises:
        SetupError: The name is unknown.
    """
    if name in MODELS:
        return MODELS[name]
    kind, _, cv = name.partition(":")
    if kind != "gamma":
        known = ", ".join([*MODELS, "gamma:CV"])
        raise SetupError(f"no arrivals are called '{name}'; choose one of: {known}")
    least, most = GAMMA_CV
    try:
        wanted = float(cv)
    except ValueError:
        wanted = math.nan
    if not least <= wanted <= most:
        raise SetupError(f"'{name}': write gamma:CV with a CV of {least:g} to {most:g}: gamma:2.5")
    return ArrivalModel(1.0, wanted, dict.fromkeys(WINDOWS_S), partial(_gamma, wanted))


def draw_arrivals(name: str, count: int, rate_per_s: float, seed: int) -> list[int]:
    """Instants in µs, the first one 0, ascending; the same for the same arguments.

    `rate_per_s` is the rate in the long run: a short series of a bursty process may be far from it.

    Raises:
        SetupError: no process has this name, or there can be no such series.
    """
    check_count(count)
    return list(islice(_arrivals(name, rate_per_s, seed), count))


def arrivals_within(name: str, duration_s: float, rate_per_s: float, seed: int) -> list[int]:
    """Return the arrivals of the same series within a duration.

    Raises:
        SetupError: The name is unknown, or the series is impossible.
    """
    if not (duration_s > 0 and math.isfinite(duration_s)):
        raise SetupError(f"the duration must be above 0 seconds; it is {duration_s}")
    most = islice(_arrivals(name, rate_per_s, seed), MOST_ARRIVALS + 1)
    found = list(takewhile(lambda at_us: at_us < duration_s * SECOND, most))
    if len(found) > MOST_ARRIVALS:
        raise SetupError(
            f"{rate_per_s:g} arrivals per second for {duration_s:g} s are more than "
            f"{MOST_ARRIVALS}, which is the limit"
        )
    return found


def _arrivals(name: str, rate_per_s: float, seed: int) -> Iterator[int]:
    scale = time_scale(name, rate_per_s)
    instants_s = arrival_model(name).instants_s(Random(seed))  # noqa: S311  (a workload, not a secret)
    first_s = next(instants_s)
    yield 0
    for at_s in instants_s:
        yield round((at_s - first_s) * scale * SECOND)


def time_scale(name: str, rate_per_s: float) -> float:
    """Return the factor by which a process's gaps are longer than at its own rate."""
    check_rate(rate_per_s)
    return arrival_model(name).rate_per_s / rate_per_s


def check_rate(rate_per_s: float) -> None:
    least, most = RATE_PER_S
    if not least <= rate_per_s <= most:
        raise SetupError(
            f"the rate must be above 0 arrivals per second, from {least:f} to {most:g}; "
            f"it is {rate_per_s:g}"
        )


def check_count(count: int) -> None:
    if not 1 <= count <= MOST_ARRIVALS:
        raise SetupError(
            f"the number of arrivals must be 1 or more; it is {count} (and {MOST_ARRIVALS} at most)"
        )


class Burstiness(TypedDict):
    """None stands where there is too little data for a figure."""

    cv: float | None  # standard deviation / mean of the gaps
    index_of_dispersion: dict[int, float | None]  # window, s -> variance / mean of its counts


def measure_burstiness(arrivals_us: Sequence[int], scale: float = 1.0) -> Burstiness:
    """Return how bursty ascending arrivals are. A Poisson process has 1 everywhere.

    Windows are seconds of the process's own time: with the `time_scale` by which the gaps were
    multiplied, the figures are comparable with the trace's at any rate.
    """
    gaps = [later - earlier for earlier, later in pairwise(arrivals_us)]
    known = len(gaps) >= ENOUGH and any(gaps)
    return {
        "cv": pstdev(gaps) / fmean(gaps) if known else None,
        "index_of_dispersion": {
            window_s: _index_of_dispersion(arrivals_us, window_s * SECOND * scale)
            for window_s in WINDOWS_S
        },
    }


def _index_of_dispersion(arrivals_us: Sequence[int], window_us: float) -> float | None:
    """Over the whole windows from the first arrival on; what is left at the end does not count."""
    if not arrivals_us:
        return None
    windows = int((arrivals_us[-1] - arrivals_us[0]) / window_us)
    if windows < ENOUGH:
        return None
    busy = Counter(int((at - arrivals_us[0]) / window_us) for at in arrivals_us)
    counts = [busy[window] for window in range(windows)]
    return pvariance(counts) / fmean(counts)
