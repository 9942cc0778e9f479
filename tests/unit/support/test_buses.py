"""A test that waits for what a consumer does, and that consumer fails."""

import asyncio

import pytest

from tests.support.buses import Seen, consuming


class Broken:
    async def consume(self, *_where, concurrency):
        raise ValueError("it cannot be read")


async def test_a_consumer_that_fails_ends_the_block_at_once_and_says_why():
    with pytest.raises(ExceptionGroup) as failed:
        async with consuming(Broken(), Seen()):
            await asyncio.Event().wait()
    assert failed.group_contains(ValueError, match="it cannot be read")
