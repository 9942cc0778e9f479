"""Batches in /metrics, as their directory has them: whichever process drives."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.batch_settings import BatchSettings
from kairos.live.batches.kept import KeptBatches
from kairos.live.batches.records import ENDED, State

LOOK_S = 2.0  # between two looks at the disk, for which no scrape waits
_OPEN: tuple[State, ...] = ("validating", "in_progress", "finalizing", "cancelling")
_LINES = "Lines of batches that ended, since their directory is there"


class BatchFigures(Collector):
    """Those of the last look. `run` looks again and again."""

    def __init__(
        self, lines: Callable[[], Mapping[str, int]], open_now: Callable[[], Mapping[str, int]]
    ) -> None:
        """Both by state; they wait for the disk."""
        self._read_lines, self._read_open = lines, open_now
        self._lines: Mapping[str, int] = {}
        self._open: Mapping[str, int] = {}

    async def run(self) -> None:
        """Until cancelled. Of a disk that does not do what it should, whoever drives tells."""
        while True:
            with contextlib.suppress(sqlite3.Error):
                self._lines = await asyncio.to_thread(self._read_lines)
                self._open = await asyncio.to_thread(self._read_open)
            await asyncio.sleep(LOOK_S)

    def collect(self) -> Iterator[Metric]:
        lines = CounterMetricFamily("kairos_batch_lines", _LINES, labels=["state"])
        for state in ENDED:
            lines.add_metric([state], self._lines.get(state, 0))
        yield lines
        open_now = GaugeMetricFamily(
            "kairos_batches_open", "Batches that have not ended", labels=["state"]
        )
        for state in _OPEN:
            open_now.add_metric([state], self._open.get(state, 0))
        yield open_now


@contextlib.contextmanager
def batch_figures(
    settings: BatchSettings | None, show: Callable[[Collector], None]
) -> Iterator[list[Coroutine[None, None, None]]]:
    """What is to run beside. `show` is given the figures, where there are batches.

    Raises:
        SetupError: the directory cannot hold batches.
    """
    if settings is None:
        yield []
        return
    with contextlib.closing(KeptBatches(settings)) as kept:
        figures = BatchFigures(kept.batches.totals, kept.batches.open_by_state)
        show(figures)
        yield [figures.run()]
