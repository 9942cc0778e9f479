"""An engine that a test holds by hand."""

import asyncio

from aiohttp import web

from tests.e2e.client import LIMIT_S


class Received:
    """A call as it reached the engine."""

    def __init__(self, request, body):
        self.method, self.path, self.body = request.method, request.raw_path, body
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in request.raw_headers
        }


class Engine:
    """An engine that records what reaches it, and answers what and when the test wants.

    `answer` makes a response to a call, or writes one, and `probe` to what Kairos asks for itself;
    `lost` counts callers that left before the end of their answer.
    """

    def __init__(self):
        self.url = ""
        self.models = ["tiny"]
        self.calls = []
        self.probes = []
        self.lost = 0
        self.turns = asyncio.Semaphore(0)  # for answers that wait until the test releases them
        self._changed = asyncio.Event()

    async def probe(self, request):
        """A healthy engine, with no more to tell than its models."""
        if request.raw_path != "/v1/models":
            return web.Response()
        return web.json_response({"data": [{"id": model} for model in self.models]})

    async def answer(self, request):
        return web.json_response({"object": "made up", "number": len(self.calls)})

    async def when_released(self, request):
        await self.turns.acquire()
        return web.json_response({"object": "made up", "number": len(self.calls)})

    def stream(self, *parts, then=None, content_type="text/event-stream"):
        """An answer that sends one part of a stream at each release of `turns`.

        A caller counts as lost as soon as it leaves, though nothing is being written.
        """

        async def answer(request):
            response = web.StreamResponse(headers={"Content-Type": content_type})
            await response.prepare(request)
            for part in parts:
                await self.turns.acquire()
                await response.write(part)
            if then is not None:
                await self.turns.acquire()
                then(request.transport)
            return response

        return answer

    def release(self, number=1):
        for _ in range(number):
            self.turns.release()

    async def until(self, condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def called(self, number=1):
        """The call of that number, when it is here."""
        await self.until(lambda: len(self.calls) >= number)
        return self.calls[number - 1]

    async def handle(self, request):
        if request.method == "GET" and request.raw_path in (
            "/health", "/v1/models", "/props", "/metrics", "/server_info?config_format=json",
            "/get_server_info",
        ):  # fmt: skip
            self.probes.append(Received(request, b""))
            self._changed.set()
            return await self.probe(request)
        self.calls.append(Received(request, await request.read()))
        self._changed.set()
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.lost += 1
            self._changed.set()
            raise
