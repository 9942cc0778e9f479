"""What the brain alone takes for a call, in units of a reference computation in the same process.

It needs no peer and no network, so it is as steady as a figure of this machine can be: what slows
the processor down slows both.
"""

import gc
import time
from collections.abc import Callable

from bench.placement_pool import Calls
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    Arrived,
    Balancer,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
)

CALLS = 300
UNDER_WAY = 32
STEPS = 100_000  # of the reference computation
CALL_US = 1_000  # of virtual time between calls
POLICY = PLACEMENT = "kairos"


def reference() -> float:
    """CPU seconds for 1,000 steps of a loop that does what Python code does: dictionaries, tuples,
    calls."""
    return _timed(_reference) * 1_000 / STEPS


def _reference() -> None:
    held: dict[int, tuple[int, str]] = {}
    for number in range(STEPS):
        held[number & 1023] = (number, str(number))
        if number & 7 == 0:
            max(held.get(number & 511, (0, "")), held.get(number & 255, (0, "")))


def brain(instances: int) -> float:
    """CPU seconds for each call: its arrival, first token and end, where there is room."""
    balancer = Balancer(POLICIES[POLICY], PLACEMENTS[PLACEMENT])
    at = 0
    for number in range(instances):
        instance = Instance(
            id=f"instance{number}", models=(), max_num_seqs=512, kv_tokens=10_000_000
        )
        balancer.handle(InstanceJoined(instance), at)
    made = Calls(0, prefixes=True)
    requests = [made.next(CALL_US * number).request for number in range(CALLS + UNDER_WAY)]

    def run() -> None:
        for number, request in enumerate(requests):
            balancer.handle(Arrived(request), CALL_US * number)
            balancer.handle(FirstToken(request.id), CALL_US * number + 100)
            if number >= UNDER_WAY:
                ended = Finished(requests[number - UNDER_WAY].id, completion_tokens=16)
                balancer.handle(ended, CALL_US * number + 200)

    return _timed(run) / len(requests)


def _timed(run: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        run()
        return time.process_time() - began
    finally:
        gc.enable()
