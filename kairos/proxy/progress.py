"""Tells how far the answers are that this process streams."""

import asyncio
from collections.abc import Callable
from itertools import islice

from kairos.core.events import Event, Progressed
from kairos.proxy.calls_in_flight import CallsInFlight

INTERVAL_S = 1.0
CALLS_TOLD = 10_000  # at once; those beyond it go on as they did


async def tell_progress(calls: CallsInFlight, feed: Callable[[Event], None]) -> None:
    """Once a second, until cancelled; nothing while nothing is streamed."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        if (fact := progress(calls)) is not None:
            feed(fact)


def progress(calls: CallsInFlight) -> Progressed | None:
    """How many tokens each streamed answer has had, of those that have begun."""
    begun = (
        (request_id, tokens)
        for request_id, stream in calls.streams.items()
        if (tokens := stream.completion_tokens)
    )
    told = dict(islice(begun, CALLS_TOLD))
    return Progressed(told) if told else None
