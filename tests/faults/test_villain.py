"""One caller whose calls break what serves them, beside others."""

import pytest

from tests.faults.villain import (
    always_the_same,
    each_another,
    ends,
    play,
    two_that_break,
    two_that_die,
)

SECONDS = 3


@pytest.mark.parametrize("poison", [always_the_same, each_another])
async def test_nobody_else_notices(poison):
    async with two_that_break() as (served, proxies):
        await play(served, proxies, "first", seconds=1)  # the engines are known to be well
        told = await play(served, proxies, "play", seconds=SECONDS, poison=poison)

        assert len(told.villains) >= 3
        assert set(ends(told.villains)) == {"error 503 upstream_unreachable"}
        assert told.others
        assert not told.failed
        assert told.doubted == 0
        await served.settled()


@pytest.mark.parametrize(
    "poison", [always_the_same, pytest.param(each_another, marks=pytest.mark.long)]
)
async def test_nobody_else_fails_where_engines_die_of_it(poison):
    async with two_that_die() as (served, proxies):
        await play(served, proxies, "first", seconds=1)
        told = await play(served, proxies, "play", seconds=8, poison=poison)
        await served.settled()

    assert told.killed >= 1
    assert not told.failed
    assert told.doubted <= 1
    refused = [each.detail[:3] for each in told.villains if each.end != "gave up"]
    assert {*refused} <= {"429", "502"}
