"""What is unpacked counts for what calls in flight hold."""

import asyncio
import gzip

import pytest

from kairos.errors import KairosError
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
