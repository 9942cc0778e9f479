"""Metrics of batches, read from their directory, so they include every process that drives."""

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.batches.records import ENDED, State
from kairos.settings import BatchSettings

_OPEN: tuple[State, ...] = ("validating", "in_progress", "finalizing", "cancelling")
_LINES = "Lines of batches that ended, since their directory was created"


class BatchFigures(Collector):
    """Metrics of batches, as of the last read of the database."""

    def __init__(
        self, lines: Callable[[], Mapping[str, int]], open_now: Callable[[], Mapping[str, int]]
    ) -> None:
        """Take functions that return counts by state; both wait for the disk."""
        self._read_lines, self._read_open = lines, open_now
        self._lines: Mapping[str, int] = {}
        self._open: Mapping[str, int] = {}

    def look(self) -> None:
        """Read the counts again. Raises sqlite3.Error."""
        self._lines, self._open = self._read_lines(), self._read_open()

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
    """Show the metrics if batches are on; yield the coroutines to run concurrently.

    Raises:
        SetupError: the directory cannot hold batches.
    """
    if settings is None:
        yield []
        return
    from kairos.batches.kept import KeptBatches
    from kairos.observe import look_again

    with contextlib.closing(KeptBatches(settings)) as kept:
        figures = BatchFigures(kept.batches.totals, kept.batches.open_by_state)
        show(figures)
        yield [look_again(figures.look)]
