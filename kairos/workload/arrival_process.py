"""When work arrives: processes with the burstiness of production traces, and the traces themselves.

The processes are Cox processes: Poisson, with a rate that itself varies at random. With a rate of
mean L and autocovariance s² L² e^(-t/T), counts in windows of length w have the index of dispersion
(variance / mean)

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

A series is made at the trace's own rate and then scaled in time to the wanted one: all gaps are
multiplied, which leaves CV and the shape of bursts as they were. Taking every n-th arrival instead
would give a smoother process than the trace.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev, pvariance
from typing import NamedTuple, TypedDict

from kairos.errors import InvalidFile, SetupError
from kairos.model import SECOND
from kairos.workload.files import read_lines

WINDOWS_S = (1, 10, 60)
ENOUGH = 20  # gaps, and windows: below, a variance is off by a third or more

TRACE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


class Piece(NamedTuple):
    """A stretch of time with a constant rate of arrivals."""

    duration_s: float
    rate_per_s: float


class ArrivalModel(NamedTuple):
    """A process of arrivals at its own rate, and the figures of the trace that it stands for."""

    rate_per_s: float
    cv: float
    index_of_dispersion: dict[int, float]  # at windows of so many seconds
    pieces: Callable[[Random, float], Iterator[Piece]]


def _constant_rate(_random: Random, rate_per_s: float) -> Iterator[Piece]:
    yield Piece(math.inf, rate_per_s)


def _log_normal_rate(
    random: Random, rate_per_s: float, *, relative_std: float, correlation_s: float
) -> Iterator[Piece]:
    step_s = 1.0  # short beside the correlation time, so the rate may stand still for so long
    sigma = math.sqrt(math.log1p(relative_std**2))
    keep = math.exp(-step_s / correlation_s)
    level = random.gauss(0, sigma)
    while True:
        yield Piece(step_s, rate_per_s * math.exp(level - sigma**2 / 2))
        level = keep * level + math.sqrt(1 - keep**2) * random.gauss(0, sigma)


def _on_off_rate(
    random: Random, rate_per_s: float, *, on_s: float, off_s: float
) -> Iterator[Piece]:
    while True:
        yield Piece(random.expovariate(1 / on_s), rate_per_s * (on_s + off_s) / on_s)
        yield Piece(random.expovariate(1 / off_s), 0.0)


MODELS = {
    "poisson": ArrivalModel(1.0, 1.0, {1: 1.0, 10: 1.0, 60: 1.0}, _constant_rate),
    "azure-conv": ArrivalModel(
        5.53,
        1.09,
        {1: 1.39, 10: 3.86, 60: 16.1},
        partial(_log_normal_rate, relative_std=0.236, correlation_s=92.0),
    ),
    "azure-code": ArrivalModel(
        2.57,
        13.15,
        {1: 13.2, 10: 71.6, 60: 164.0},
        partial(_on_off_rate, on_s=9.27, off_s=42.2),
    ),
}


def arrivals(name: str, count: int, rate_per_s: float, seed: int) -> list[int]:
    """Instants in µs, the first one 0, ascending; the same for the same arguments.

    `rate_per_s` is the rate in the long run: a short series of a bursty process may be far from it.

    Raises:
        SetupError: no process has this name, or there can be no such series.
    """
    scale = time_scale(name, rate_per_s)
    _check_count(count)
    random = Random(seed)  # noqa: S311  (a workload, not a secret)
    model = MODELS[name]
    at_s = _cox(random, model.pieces(random, model.rate_per_s), count)
    return [round((at - at_s[0]) * scale * SECOND) for at in at_s]


def _cox(random: Random, pieces: Iterator[Piece], count: int) -> list[float]:
    """The first arrivals of a process whose rate is constant in each piece, in seconds."""
    at_s: list[float] = []
    start_s = 0.0
    for duration_s, rate_per_s in pieces:
        now_s, end_s = start_s, start_s + duration_s
        while rate_per_s > 0:
            # An exponential gap has no memory: it may begin anew where the rate changes.
            now_s += random.expovariate(rate_per_s)
            if now_s >= end_s:
                break
            at_s.append(now_s)
            if len(at_s) == count:
                return at_s
        start_s = end_s
    raise AssertionError("a process of arrivals never ends")


def from_trace(path: Path, count: int, rate_per_s: float, seed: int) -> list[int]:
    """`count` consecutive arrivals of an Azure trace from a place chosen by the seed, in µs from 0.

    Gaps are scaled by the rate of the whole trace, so a busy stretch of it stays a busy one.

    Raises:
        InvalidFile: the file is not such a trace, or is too short.
    """
    _check_count(count)
    _check_rate(rate_per_s)
    at_us = [row.at_us for row in read_trace(path)]
    if count > len(at_us):
        raise InvalidFile(path, f"{count} arrivals wanted, the trace has {len(at_us)}")
    scale = (len(at_us) - 1) * SECOND / at_us[-1] / rate_per_s
    start = Random(seed).randrange(len(at_us) - count + 1)  # noqa: S311  (no secret either)
    return [round((at - at_us[start]) * scale) for at in at_us[start : start + count]]


def time_scale(name: str, rate_per_s: float) -> float:
    """How many times longer than at its own rate the gaps of a process are at this rate."""
    if name not in MODELS:
        raise SetupError(f"no arrivals are called '{name}'; choose one of: {', '.join(MODELS)}")
    _check_rate(rate_per_s)
    return MODELS[name].rate_per_s / rate_per_s


def _check_rate(rate_per_s: float) -> None:
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise SetupError(f"the rate must be above 0 arrivals per second; it is {rate_per_s}")


def _check_count(count: int) -> None:
    if count < 1:
        raise SetupError(f"the number of arrivals must be 1 or more; it is {count}")


class Burstiness(TypedDict):
    """None stands where there is too little data for a figure."""

    cv: float | None  # standard deviation / mean of the gaps
    index_of_dispersion: dict[int, float | None]  # window, s -> variance / mean of its counts


def burstiness(arrivals_us: Sequence[int], scale: float = 1.0) -> Burstiness:
    """How bursty ascending arrivals are. A Poisson process has 1 everywhere.

    Windows are seconds of the process's own time: with the `time_scale` by which the gaps were
    multiplied, the figures compare with the trace's whatever the rate.
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


class TraceRow(NamedTuple):
    """One request of an Azure trace."""

    at_us: int  # from the first row
    prompt_tokens: int
    completion_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """An Azure LLM inference trace: CSV with the columns of `TRACE_HEADER`, plain or gzip.

    Raises:
        InvalidFile: a line is not what it should be, or there are no two instants in the file.
    """
    rows: list[TraceRow] = []
    origin: datetime | None = None
    for number, line in read_lines(path):
        if number == 1:
            if line.strip() != TRACE_HEADER:
                raise InvalidFile(path, f"the header is not {TRACE_HEADER.decode()}", line=1)
            continue
        try:
            stamp, prompt, completion = line.decode("ascii").split(",")
            at = datetime.fromisoformat(stamp)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            origin = origin or at
            row = TraceRow((at - origin) // timedelta(microseconds=1), int(prompt), int(completion))
        except ValueError as error:
            raise InvalidFile(path, f"not a row of a trace: {error}", line=number) from error
        if rows and row.at_us < rows[-1].at_us:
            raise InvalidFile(path, "earlier than the row before", line=number)
        rows.append(row)
    if not rows or rows[-1].at_us == 0:
        raise InvalidFile(path, "no two instants in the file")
    return rows
