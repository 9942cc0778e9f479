"""The Azure LLM inference traces: arrivals and lengths of a production service's requests."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

from kairos.core import SECOND, InvalidFile
from kairos.host import read_lines
from kairos.simulate.workload.arrival_process import check_count, check_rate
from kairos.simulate.workload.workflow_file import MAX_TOKENS

TRACE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


class TraceRow(NamedTuple):
    """A request of an Azure trace."""

    at_us: int  # from the first row
    prompt_tokens: int
    completion_tokens: int


def is_trace(path: Path) -> bool:
    """Return whether the file begins as an Azure trace does."""
    _, first = next(read_lines(path), (0, b""))
    return first.strip() == TRACE_HEADER


def read_trace(path: Path) -> list[TraceRow]:
    """Read an Azure LLM inference trace: CSV with the columns of `TRACE_HEADER`, plain or gzip.

    Raises:
        InvalidFile: A line is malformed, or all instants are equal.
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
            at_us = (at - origin) // timedelta(microseconds=1)
            row = TraceRow(at_us, _tokens(prompt), _tokens(completion))
        except ValueError as error:
            raise InvalidFile(path, f"not a row of a trace: {error}", line=number) from error
        if rows and row.at_us < rows[-1].at_us:
            raise InvalidFile(path, "earlier than the row before", line=number)
        rows.append(row)
    if not rows or rows[-1].at_us == 0:
        raise InvalidFile(path, "no two instants in the file")
    return rows


def _tokens(text: str) -> int:
    tokens = int(text)
    if not 0 <= tokens <= MAX_TOKENS:
        raise ValueError(f"tokens must be from 0 to {MAX_TOKENS}")
    return tokens


def from_trace(path: Path, count: int, rate_per_s: float, seed: int) -> list[int]:
    """`count` consecutive arrivals of an Azure trace from a place chosen by the seed, in µs from 0.

    Gaps are scaled by the rate of the whole trace, so a busy stretch of it stays a busy one.

    Raises:
        InvalidFile: the file is not such a trace, or is too short.
    """
    check_count(count)
    check_rate(rate_per_s)
    at_us = [row.at_us for row in read_trace(path)]
    if count > len(at_us):
        raise InvalidFile(path, f"{count} arrivals wanted, the trace has {len(at_us)}")
    scale = (len(at_us) - 1) * SECOND / at_us[-1] / rate_per_s
    start = Random(seed).randrange(len(at_us) - count + 1)  # noqa: S311  (no secret either)
    return [round((at - at_us[start]) * scale) for at in at_us[start : start + count]]
