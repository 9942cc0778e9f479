"""The time of a function is measured where it is called, without its wait for a thread."""

import asyncio
import time

from kairos.flow import Functions
from kairos.workflows import RunFunction
from kairos.workflows.run.calls import RunCalls

FUNCTIONS = Functions()


@FUNCTIONS.pure
def computes():
    """Return the seconds that it took."""
    began_s = time.monotonic()
    sum(range(200_000))
    return time.monotonic() - began_s


@FUNCTIONS.pure
async def computes_too():
    await asyncio.to_thread(sum, range(10))
    return computes()


async def test_functions_in_threads_and_on_the_loop_say_what_they_took():
    facts = asyncio.Queue()
    calls = RunCalls(
        "run", "app", None, FUNCTIONS, None, facts.put_nowait, service_class="batch",
        ahead_class=None, threads=1,
    )  # fmt: skip
    names, began_s = ["computes"] * 8 + ["computes_too"], time.monotonic()
    for number, name in enumerate(names):
        calls.perform(
            RunFunction(
                call=number, stage=0, node=name, row=number, attempt=1, operator=name,
                signature="", delay_us=0, function=name, arguments={}, idempotency_key=None,
            )
        )  # fmt: skip
    found = [await asyncio.wait_for(facts.get(), 60) for _ in names]
    ended_s = time.monotonic()
    await calls.abandon()
    assert all(each.took_us >= each.value * 1e6 - 1 for each in found)
    # With one thread times add up to no more than has passed: none has its wait in it.
    in_thread = [each.took_us for each in found if each.call < 8]
    assert sum(in_thread) <= (ended_s - began_s) * 1e6
