"""What is unpacked counts for what calls in flight hold."""

import asyncio
import gzip

import pytest

from kairos.core import BodyTooSlow, KairosError, ShareUsed, TooMuchHeld
from kairos.request import Bodies, ClientResponse
from kairos.request.bodies import LEAST_BYTES_PER_S, SILENCE_S


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

    def on_body(self, content):
        self.end.set_result(content)

    def on_body_refused(self, error):
        self.end.set_exception(error)


PACKED = {b"content-encoding": b"gzip"}


async def test_a_body_is_held_packed_and_unpacked_until_its_call_ends():
    content, taker, response = b"x" * 1_000, Taker(), ClientResponse("r", None)
    packed = gzip.compress(content)
    bodies = Bodies(10_000, 10_000)
    bodies.read_body(PACKED, Source(packed), response, taker)
    assert await taker.end == content
    assert response.held_bytes == bodies._held_bytes == len(packed) + len(content)
    bodies.release_bytes(response)
    assert bodies._held_bytes == 0


async def test_what_unpacks_to_more_than_may_be_held_is_refused():
    taker = Taker()
    Bodies(10_000, 500).read_body(
        PACKED, Source(gzip.compress(b"x" * 1_000)), ClientResponse("r", None), taker
    )
    with pytest.raises(KairosError, match="hold"):
        await taker.end


def holding(bodies, caller, size):
    """A call of theirs that has so long a body."""
    response = ClientResponse("r", None, caller)
    bodies.hold_bytes(size, response)
    return response


def test_of_one_caller_is_held_its_share_and_others_have_room():
    bodies = Bodies(100, 1_000)
    calls = [holding(bodies, "greedy", 100) for _ in range(9)]
    refused = ClientResponse("r", None, "greedy")
    with pytest.raises(ShareUsed, match="bodies in flight"):
        bodies.hold_bytes(50, refused)
    bodies.release_bytes(refused)
    others = holding(bodies, "other", 50)

    for each in [*calls, others]:
        bodies.release_bytes(each)
        bodies.release_bytes(each)  # told again
    assert (bodies._held_bytes, bodies._held_by) == (0, {})


def test_a_callers_only_body_may_be_as_large_as_there_is_room():
    bodies = Bodies(1_000, 1_000)
    bodies.release_bytes(holding(bodies, "alone", 1_000))
    holding(bodies, "other", 100)
    holding(bodies, "alone", 900)
    with pytest.raises(TooMuchHeld):
        holding(bodies, "third", 1)


def test_a_body_that_grows_counts_for_its_caller():
    bodies = Bodies(1_000, 1_000)
    holding(bodies, "greedy", 500)
    second = holding(bodies, "greedy", 10)
    with pytest.raises(ShareUsed):
        bodies.hold_bytes(435, second)


class Slow:
    """A body that comes at given instants of a loop whose clock moves on its own."""

    def __init__(self, loop, parts):
        self.parts, self.reader = parts, None
        for at, _ in parts:
            loop.call_at(at, self.come)

    def take_body(self):
        if self.reader is None:
            return b"", False
        _, part = self.parts.pop(0)
        return part, not self.parts

    def read_body_by(self, reader):
        self.reader = reader

    def come(self):
        if self.reader is not None:
            self.reader.body_came()


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else is to be done."""

    passed_s = 0.0

    def time(self):
        return self.passed_s

    def _run_once(self):
        if not self._ready and self._scheduled:
            self.passed_s = max(self.passed_s, self._scheduled[0]._when)
        super()._run_once()


def upload(parts):
    """Return the length of a body whose parts come at these seconds."""

    async def run():
        taker = Taker()
        source = Slow(asyncio.get_running_loop(), parts)
        bodies = Bodies(1 << 30, 1 << 30)
        bodies.read_body({}, source, ClientResponse("r", None), taker)
        return await taker.end

    loop = QuickLoop()
    try:
        return len(loop.run_until_complete(run()))
    finally:
        loop.close()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(s, bytes(2_000)) for s in range(1, 71)], id="140 kB at 2 kB/s"),
        pytest.param([(50, bytes(9)), (59, bytes(9))], id="few bytes, within the time"),
        pytest.param([(50 * n, bytes(100_000)) for n in range(1, 20)], id="large parts, far apart"),
    ],
)
def test_a_body_that_comes_steadily_may_take_as_long_as_it_takes(parts):
    assert upload([*parts]) == sum(len(part) for _, part in parts)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(SILENCE_S + 1, b"x")], id="nothing"),
        pytest.param([(1, bytes(1 << 20)), (SILENCE_S + 2, b"x")], id="much, and then nothing"),
        pytest.param([(s, b"x") for s in range(1, 100)], id="a byte a second"),
        pytest.param(
            [(s, bytes(LEAST_BYTES_PER_S // 2)) for s in range(1, 200)], id="half of the least"
        ),
    ],
)
def test_a_body_that_stops_or_drips_is_given_up(parts):
    with pytest.raises(BodyTooSlow):
        upload([*parts])
