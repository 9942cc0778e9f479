"""One caller whose calls break what serves them, beside others."""

import pytest

from tests.faults.villain import always_the_same, each_another, play, two_that_break

SECONDS = 3


@pytest.mark.parametrize("poison", [always_the_same, each_another])
async def test_nobody_else_notices(poison):
    async with two_that_break() as served:
        await play(served, seconds=1)  # the engines are known to be well
        told = await play(served, seconds=SECONDS, poison=poison)

        assert len(told.villains) >= 3
        assert set(told.villains) == {(502, "call_breaks_engines")}
        assert told.latencies_s
        assert told.failed == []
        assert told.doubted == 0
        await served.settled()


async def test_a_body_that_is_known_reaches_no_engine_again():
    async with two_that_break() as served:
        await play(served, seconds=1)
        told = await play(served, seconds=SECONDS, poison=always_the_same)

        bounced = [each for each in served.facts.records if type(each.event).__name__ == "Bounced"]
        assert len(told.villains) >= 3
        assert len(bounced) == 2  # each engine had it once
