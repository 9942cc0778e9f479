"""One caller whose calls break what serves them, beside others."""

import pytest

from tests.faults.villain import always_the_same, each_another, play, two_that_break, two_that_die

SECONDS = 3


@pytest.mark.parametrize("poison", [always_the_same, each_another])
async def test_nobody_else_notices(poison):
    async with two_that_break() as (served, _):
        await play(served, seconds=1)  # the engines are known to be well
        told = await play(served, seconds=SECONDS, poison=poison)

        assert len(told.villains) >= 3
        assert set(told.villains) == {(503, "upstream_unreachable")}
        assert told.latencies_s
        assert told.failed == []
        assert told.doubted == 0
        await served.settled()


@pytest.mark.parametrize(
    "poison", [always_the_same, pytest.param(each_another, marks=pytest.mark.long)]
)
async def test_nobody_else_fails_where_engines_die_of_it(poison):
    async with two_that_die() as (served, proxies):
        await play(served, seconds=1)
        told = await play(served, seconds=8, poison=poison)
        await served.settled()

    assert sum(each.died for each in proxies) >= 1
    assert told.failed == []
    assert told.doubted <= 1
    assert {status for status, _ in told.villains} <= {0, 429, 502}
