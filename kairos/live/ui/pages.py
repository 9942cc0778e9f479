"""The page's routes, on the operators' port. All of them read, and none changes anything."""

from collections.abc import AsyncIterator, Coroutine

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from kairos.live.frontend.insight import number_of
from kairos.live.ui.assets import HEADERS, read_assets
from kairos.live.ui.now import QUEUE_PAGE, Now
from kairos.live.ui.watch import Watch

PREFIX = "/ui"  # of all routes of the page
MAX_OFFSET = 1_000_000
_PAGES = {"/ui": "now.html"}  # and the file that each is
_RECONNECT_MS = 1_000


class Ui:
    """The page of one process. Its `background` runs beside what serves it."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._watch = Watch(lambda: msgspec.json.encode(now.view()))

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self._watch.run()]

    def add_to(self, app: FastAPI) -> None:
        assets = read_assets()
        for path, name in _PAGES.items():
            app.add_api_route(path, assets[name].response, include_in_schema=False)

        @app.get("/ui/static/{name}", include_in_schema=False)
        async def static(name: str) -> Response:
            asset = assets.get(name)
            if asset is None:
                raise HTTPException(404)
            return asset.response()

        @app.get("/ui/data/now")
        async def now() -> Response:
            """What goes on at this moment, once."""
            return _json(self._now.view())

        @app.get("/ui/data/queue")
        async def queue(request: Request) -> Response:
            """A page of what waits, in the order in which it would go."""
            offset = number_of(request, "offset", 0, 0, MAX_OFFSET)
            return _json(self._now.queue(offset, QUEUE_PAGE))

        @app.get("/ui/live")
        async def live() -> Response:
            """What goes on, every second, as server-sent events."""
            self._watch.check()
            return StreamingResponse(
                self._events(), media_type="text/event-stream", headers=dict(HEADERS)
            )

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        async for picture in self._watch.pictures():
            yield b"data: %b\n\n" % picture


def _json(view: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json", headers=dict(HEADERS))
