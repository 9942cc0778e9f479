"""Processors that are services of their own, as whoever asks them meets them: some come late, some
hang, some do not go with the others."""

import asyncio
import socket
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from aiohttp import web

from kairos.core import Unavailable, UpstreamFailed
from kairos.settings import ProcessorEngine, RetrievalSettings
from kairos.workflows import AboutProcessor, RunProcessor
from kairos.workflows.execute.commands import DropHeld
from kairos.workflows.remote import links, peers, remote
from kairos.workflows.remote.remote import RemoteProcessors, remote_processors
from kairos.workflows.remote.wire import ProcessorReply

LIMIT_S = 60
RUN = "run-1"


class Told:
    """A processor's server. `hangs`: the methods that it does not answer."""

    def __init__(self, *, collections=None, models=("m",), hangs=()):
        self.about = AboutProcessor({"embed": list(models)}, collections)
        self.hangs, self.asked, self.left = hangs, [], asyncio.Event()
        self.at_once = self.most_at_once = 0
        self.port = 0

    async def start(self, stack, port=0):
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.callback(self.left.set)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.port = runner.addresses[0][1]
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def place(self):
        return f"127.0.0.1:{self.port}"

    def times(self, path):
        return sum(each.endswith(path) for each in self.asked)

    async def _answer(self, request):
        self.asked.append(f"{request.method} {request.path}")
        if request.method in self.hangs:
            await self.left.wait()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.02)
        self.at_once -= 1
        if request.path == "/v1/about":
            return web.Response(body=msgspec.json.encode(self.about))
        if request.method == "DELETE":
            return web.Response(status=204)
        return web.Response(body=msgspec.json.encode(ProcessorReply(msgspec.Raw(b'"AAAA"'))))


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def times(monkeypatch):
    monkeypatch.setattr(remote, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(remote, "_AGAIN_S", 1000.0)


async def opened(stack, *urls):
    settings = RetrievalSettings(processors=urls)
    return await stack.enter_async_context(remote_processors(settings, {}))


async def until(seen):
    async with asyncio.timeout(LIMIT_S):
        while not seen():
            await asyncio.sleep(0.01)


def command(kind="embed", arguments=None):
    return RunProcessor(
        *(1, 0, "node", 0, 1, "node", "0" * 32, 0),
        kind=kind,
        model=None,
        arguments={"texts": "a", "batch": 1} if arguments is None else arguments,
        idempotency_key=None,
        depth=1,
    )


SEARCH = command("search", {"vectors": "AAAA", "collection": "docs", "top_k": 1})


async def port_of_nobody(stack):
    """One that somebody had a moment ago."""
    async with AsyncExitStack() as left:
        return (await Told().start(left)).port


async def test_one_that_comes_later_is_used_too(stack):
    first, late = await Told(models=("m",)).start(stack), Told(models=("late",))
    late.port = await port_of_nobody(stack)
    found = await opened(stack, first.url, late.url)
    assert found.models == {"embed": ["m"]}
    await late.start(stack, late.port)
    await until(lambda: found.models == {"embed": ["late", "m"]})


async def test_one_that_comes_later_with_other_collections_is_not_used(stack, caplog):
    first, late = await Told(collections="a").start(stack), Told(collections="b")
    late.port = await port_of_nobody(stack)
    found = await opened(stack, first.url, late.url)
    await late.start(stack, late.port)
    await until(lambda: late.times("/about") >= 3)
    assert [each.place for each in found.able(SEARCH)] == [first.place]
    assert caplog.text.count("different places") == 1
    assert await found.of(run=RUN).run(command()) == "AAAA"
    late.about = AboutProcessor({"embed": ["m"]}, "a")
    await until(lambda: len(found.able(SEARCH)) == 2)


async def test_one_that_is_not_told_of_the_end_in_time_is_not_waited_for(stack, monkeypatch):
    monkeypatch.setattr(links, "_LOOK_S", 0.2)
    hangs = await Told(hangs=("DELETE",)).start(stack)
    settings = RetrievalSettings(processors=(hangs.url,))
    async with asyncio.timeout(LIMIT_S), remote_processors(settings, {}) as found:
        flow = found.of(run=RUN)
        flow.drop(DropHeld("0" * 32, hangs.place))
        flow.end()
        await until(lambda: hangs.times(RUN))


class Link:
    """`error`: what each task comes to."""

    def __init__(self, place, error=None):
        self.place, self._error = place, error
        self.about, self.in_hand, self.asked = AboutProcessor({"embed": []}), 0, 0

    async def ask(self, *_):
        self.asked += 1
        if self._error is not None:
            raise self._error("it said so")
        return ProcessorReply(msgspec.Raw(b'"AAAA"'))


@pytest.mark.parametrize("error", [Unavailable, UpstreamFailed])
async def test_whoever_is_left_is_asked_after_one_that_failed_or_took_all_the_patience(
    monkeypatch, error
):
    if error is Unavailable:
        monkeypatch.setattr(remote, "PATIENCE_S", -1.0)
    fails, there = Link("a:1", error), Link("b:1")
    found = RemoteProcessors([fails, there]).of(run=RUN)
    assert [await found.run(command()) for _ in range(3)] == ["AAAA"] * 3
    is_left = error is Unavailable  # for a moment
    assert (fails.asked, there.asked) == (1 if is_left else 3, 3)
    fails, also = Link("a:1", error), Link("b:1", error)
    with pytest.raises(error):
        await RemoteProcessors([fails, also]).of(run=RUN).run(command())
    assert (fails.asked, also.asked) == (1, 1)


async def test_a_host_that_is_gone_is_found_out_while_it_is_waited_for(stack, monkeypatch):
    made = []

    def watched(of):
        made.append(links.watched_socket(of))
        return made[-1]

    monkeypatch.setattr(remote, "watched_socket", watched)
    await opened(stack, (await Told().start(stack)).url)
    (each,) = made
    assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            assert each.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) == value


async def test_values_are_fetched_from_a_peer_so_many_at_once(stack):
    has = await Told().start(stack)
    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    )
    found = peers.ProcessorPeers(session, [ProcessorEngine(f"{has.url}/v1")], {})
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(found.fetch(has.place, RUN, f"{n:032x}") for n in range(200)))
    assert len(has.asked) == 200
    assert 1 < has.most_at_once <= peers._AT_ONCE


async def test_collections_are_kept_where_one_that_has_told_says_so(stack):
    without, late = await Told().start(stack), Told(collections="a")
    late.port = await port_of_nobody(stack)
    found = await opened(stack, without.url, late.url)
    assert not found.keeps_collections
    await late.start(stack, late.port)
    await until(lambda: found.keeps_collections)
