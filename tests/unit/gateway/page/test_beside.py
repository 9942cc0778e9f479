"""Commands beside what serves."""

import asyncio

import pytest

from kairos.gateway.page.beside import Beside, NotWorkedOut


async def test_of_two_who_ask_at_the_same_moment_one_is_served():
    beside = Beside(60.0)

    found = await asyncio.gather(*(beside.run("--help") for _ in range(2)), return_exceptions=True)

    refused = [each for each in found if isinstance(each, NotWorkedOut)]
    assert [str(each) for each in refused] == [
        "another request is being computed: try again in a moment"
    ]
    assert b"kairos" in await beside.run("--help")


async def test_one_that_is_stopped_before_its_process_is_there_ends_and_the_next_does_not():
    beside = Beside(60.0)
    running = asyncio.create_task(beside.run("--help"))
    await asyncio.sleep(0)
    assert beside.pid is None
    beside.stop()

    with pytest.raises(NotWorkedOut, match="it was killed"):
        await running
    beside.stop()  # of nothing
    assert b"kairos" in await beside.run("--help")
