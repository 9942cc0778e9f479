"""Spans on their way: bounded, and counted where they do not arrive."""

import asyncio
import threading

from kairos.live.tracing import span_queue
from kairos.live.tracing.span import TraceSpan
from kairos.live.tracing.span_queue import AT_ONCE, SpanQueue


def spans(number):
    return [
        TraceSpan(
            name=str(each),
            kind="internal",
            trace_id="1" * 32,
            span_id="2" * 16,
            parent_id=None,
            began_at=0,
            ended_at=1,
        )
        for each in range(number)
    ]


def counts(queue):
    return {family.name: family.samples[0].value for family in queue.collect()}


async def test_they_are_sent_in_order_so_many_at_once():
    sent = []
    queue = SpanQueue(lambda some: sent.append(list(some)) or True)
    queue.add(made := spans(AT_ONCE + 5))
    await queue.finish()
    assert [len(each) for each in sent] == [AT_ONCE, 5]
    assert [each for some in sent for each in some] == made
    assert counts(queue)["kairos_spans_sent"] == AT_ONCE + 5


async def test_what_does_not_fit_is_dropped_and_counted():
    queue = SpanQueue(lambda _: True, max_spans=10)
    queue.add(spans(25))
    assert (len(queue), queue.dropped) == (10, 15)
    await queue.finish()
    assert counts(queue)["kairos_spans_dropped"] == 15


async def test_what_a_collector_does_not_take_is_counted_and_said_once(caplog, monkeypatch):
    monkeypatch.setattr(span_queue, "_PAUSE_S", 0.001)
    queue = SpanQueue(lambda _: False)
    running = asyncio.create_task(queue.run())
    for number in (1, 2, 3):
        queue.add(spans(1))
        while queue.failed < number:
            await asyncio.sleep(0.001)
    running.cancel()
    assert [each.message for each in caplog.records] == [
        "the collector does not take spans; calls go on without"
    ]


async def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(span_queue, "_LAST_WORDS_S", 0.05)
    end = threading.Event()
    queue = SpanQueue(lambda _: end.wait(90))
    queue.add(spans(1))
    async with asyncio.timeout(60):
        await queue.finish()
    end.set()


async def test_an_exporter_that_breaks_ends_nothing_and_its_spans_are_counted():
    def broken(_some):
        raise RuntimeError

    queue = SpanQueue(broken)
    queue.add(spans(3))
    await queue.finish()
    assert counts(queue)["kairos_spans_failed"] == 3
