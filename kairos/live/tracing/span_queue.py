"""Spans on their way to the collector: many at once, beside the calls, and bounded.

A collector that is slow or away harms no call: what does not fit is dropped, and so is what could
not be sent. Both are counted, and said.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.live.tracing.span import TraceSpan

logger = logging.getLogger(__name__)

MAX_SPANS = 20_000  # that wait: about 20 MB
AT_ONCE = 64  # in a request: to turn them into bytes takes the interpreter's lock for 3 ms
_PAUSE_S = 1.0
_LAST_WORDS_S = 3.0

Send = Callable[[Sequence[TraceSpan]], bool]  # blocks; returns whether the collector took them


class SpanQueue(Collector):
    """`add` spans, and `run` beside; at the end `finish`."""

    def __init__(self, send: Send, *, max_spans: int = MAX_SPANS) -> None:
        self._send, self._max_spans = send, max_spans
        self._waiting: deque[TraceSpan] = deque()
        self.sent = self.dropped = self.failed = 0
        self._is_failing = False
        self._said_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, spans: Iterable[TraceSpan]) -> None:
        for each in spans:
            if len(self._waiting) < self._max_spans:
                self._waiting.append(each)
            else:
                self.dropped += 1

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            await self._send_all()
            if self.dropped > self._said_dropped:
                logger.warning("%d spans were dropped: too many wait", self.dropped)
                self._said_dropped = self.dropped

    async def finish(self) -> None:
        """Send what is left, if that takes no time to speak of."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._send_all(), _LAST_WORDS_S)

    async def _send_all(self) -> None:
        """Until one request fails: the rest waits."""
        while self._waiting:
            some = list(islice(self._waiting, AT_ONCE))
            for _ in some:
                self._waiting.popleft()
            if not await asyncio.to_thread(self._took, some):
                self._note_failure(len(some))
                return
            self.sent += len(some)
            if self._is_failing:
                self._is_failing = False
                logger.warning("the collector takes spans again; %d are lost", self.failed)

    def _took(self, some: Sequence[TraceSpan]) -> bool:
        try:
            return self._send(some)
        except Exception as error:  # noqa: BLE001 - of the exporter, which calls have no part in
            logger.debug("spans were not sent: %s", type(error).__name__)
            return False

    def _note_failure(self, count: int) -> None:
        self.failed += count
        if not self._is_failing:
            self._is_failing = True
            logger.warning("the collector does not take spans; calls go on without")

    def collect(self) -> Iterator[Metric]:
        for name, count, documentation in (
            ("sent", self.sent, "Spans that the collector took"),
            ("dropped", self.dropped, "Spans for which there was no room to wait"),
            ("failed", self.failed, "Spans that the collector did not take"),
        ):
            yield CounterMetricFamily(f"kairos_spans_{name}", documentation, value=count)
