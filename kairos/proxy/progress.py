"""Reports of the progress of the answers that this process streams."""

import asyncio
from collections.abc import Callable
from itertools import islice

from kairos.core import Event, Progressed
from kairos.proxy.calls_in_flight import CallsInFlight

INTERVAL_S = 1.0
CALLS_TOLD = 10_000  # in one fact; further calls are not reported


async def tell_progress(calls: CallsInFlight, feed: Callable[[Event], None]) -> None:
    """Feed the progress once a second, until cancelled; nothing while no answer is streamed."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        if (fact := progress(calls)) is not None:
            feed(fact)


def progress(calls: CallsInFlight) -> Progressed | None:
    """Return the number of tokens of each streamed answer that has begun."""
    begun = (
        (request_id, tokens)
        for request_id, stream in calls.streams.items()
        if (tokens := stream.completion_tokens)
    )
    told = dict(islice(begun, CALLS_TOLD))
    return Progressed(told) if told else None
