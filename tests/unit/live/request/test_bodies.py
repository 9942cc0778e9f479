"""What is unpacked counts for what calls in flight hold."""

import asyncio
import gzip

import pytest

from kairos.errors import KairosError, TooMuchHeld
from kairos.fair_share import ShareUsed
from kairos.live.request.bodies import Bodies
from kairos.live.request.client_response import ClientResponse


class Source:
    """A body that is here."""

    def __init__(self, content):
        self.content = content

    def take_body(self):
        content, self.content = self.content, b""
        return content, True

    def read_body_by(self, reader):
        if reader is not None:
            reader.body_came()


class Taker:
    def __init__(self):
        self.end = asyncio.get_running_loop().create_future()

    def took(self, content):
        self.end.set_result(content)

    def refused(self, error):
        self.end.set_exception(error)


PACKED = {b"content-encoding": b"gzip"}


async def test_a_body_is_held_packed_and_unpacked_until_its_call_ends():
    content, taker, response = b"x" * 1_000, Taker(), ClientResponse("r", None)
    packed = gzip.compress(content)
    bodies = Bodies(10_000, 10_000)
    bodies.read(PACKED, Source(packed), response, taker)
    assert await taker.end == content
    assert response.held_bytes == bodies._held_bytes == len(packed) + len(content)
    bodies.end(response)
    assert bodies._held_bytes == 0


async def test_what_unpacks_to_more_than_may_be_held_is_refused():
    taker = Taker()
    Bodies(10_000, 500).read(
        PACKED, Source(gzip.compress(b"x" * 1_000)), ClientResponse("r", None), taker
    )
    with pytest.raises(KairosError, match="hold"):
        await taker.end


def holding(bodies, caller, size):
    """A call of theirs that has so long a body."""
    response = ClientResponse("r", None, caller)
    bodies.hold(size, response)
    return response


def test_of_one_caller_is_held_its_share_and_others_have_room():
    bodies = Bodies(100, 1_000)
    calls = [holding(bodies, "greedy", 100) for _ in range(9)]
    refused = ClientResponse("r", None, "greedy")
    with pytest.raises(ShareUsed, match="bodies in flight"):
        bodies.hold(50, refused)
    bodies.end(refused)
    others = holding(bodies, "other", 50)

    for each in [*calls, others]:
        bodies.end(each)
        bodies.end(each)  # told again
    assert (bodies._held_bytes, bodies._held_by) == (0, {})


def test_a_callers_only_body_may_be_as_large_as_there_is_room():
    bodies = Bodies(1_000, 1_000)
    bodies.end(holding(bodies, "alone", 1_000))
    holding(bodies, "other", 100)
    holding(bodies, "alone", 900)
    with pytest.raises(TooMuchHeld):
        holding(bodies, "third", 1)


def test_a_body_that_grows_counts_for_its_caller():
    bodies = Bodies(1_000, 1_000)
    holding(bodies, "greedy", 500)
    second = holding(bodies, "greedy", 10)
    with pytest.raises(ShareUsed):
        bodies.hold(435, second)
