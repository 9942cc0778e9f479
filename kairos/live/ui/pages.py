"""The page's routes, on the operators' port. All are beneath `PAGE` (`operators.py`). These
read; what is beneath `ASK` has something worked out; what changes anything is in `acts.py`."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Protocol

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from kairos.config import Settings
from kairos.errors import InvalidRequest
from kairos.live.engines.fleet import Fleet
from kairos.live.frontend.insight import number_of
from kairos.live.frontend.operators import ASK, PAGE
from kairos.live.observers.telemetry import Telemetry
from kairos.live.ui.acts import Acts, HearsEvents
from kairos.live.ui.agents import Agents, agents_page
from kairos.live.ui.assets import HEADERS, read_assets
from kairos.live.ui.gains import Gains
from kairos.live.ui.now import QUEUE_PAGE, Now, Watched
from kairos.live.ui.watch import Watch
from kairos.live.ui.workflows import WorkflowQuery, Workflows, explain, find
from kairos.orchestrator.orchestrator import Orchestrator

MAX_OFFSET = 1_000_000
# And the file that each is.
_PAGES = {
    PAGE: "now.html",
    "/ui/workflows": "workflows.html",
    "/ui/workflow": "workflow.html",
    "/ui/agents": "agents.html",
    "/ui/gained": "gained.html",
    "/ui/operate": "operate.html",
}
_RECONNECT_MS = 1_000


class Ui:
    """The page of one process. Its `background` runs beside what serves it."""

    def __init__(
        self, now: Now, workflows: Workflows, agents: Agents, gains: Gains, acts: Acts
    ) -> None:
        self._now, self._workflows, self._agents = now, workflows, agents
        self.gains, self.acts = gains, acts
        self._watch = Watch(lambda: msgspec.json.encode(now.view()))

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self._watch.run(), self.gains.run()]

    def add_to(self, app: FastAPI) -> None:
        _add_files(app)
        self._add_now(app)
        self._add_workflows(app)
        self._add_agents(app)
        self._add_gained(app)
        self.acts.add_to(app)

    def _add_now(self, app: FastAPI) -> None:
        @app.get("/ui/data/now")
        async def now() -> Response:
            """What goes on at this moment, once."""
            return _json(self._now.view())

        @app.get("/ui/data/queue")
        async def queue(request: Request) -> Response:
            """A page of what waits, in the order in which it would go."""
            return _json(self._now.queue(_offset(request), QUEUE_PAGE))

        @app.get("/ui/live")
        async def live() -> Response:
            """What goes on, every second, as server-sent events."""
            self._watch.check()
            return StreamingResponse(
                self._events(), media_type="text/event-stream", headers=dict(HEADERS)
            )

    def _add_workflows(self, app: FastAPI) -> None:
        @app.get("/ui/data/workflows")
        async def workflows(request: Request) -> Response:
            """A page of the workflows that the query names."""
            query, offset = _query(request), _offset(request)
            remembered, at = self._workflows.remembered()
            # In a thread: there may be 100,000.
            return await asyncio.to_thread(lambda: _json(find(remembered, query, offset, at)))

        @app.get("/ui/data/workflow")
        async def workflow(request: Request) -> Response:
            """One of them, with a page of its calls, each explained."""
            said, offset = request.query_params, _offset(request)
            seen = self._workflows.snapshot(said.get("tenant", ""), said.get("id", ""))
            return await asyncio.to_thread(lambda: _json(explain(seen, offset)))

    def _add_agents(self, app: FastAPI) -> None:
        @app.get("/ui/data/agents")
        async def agents(request: Request) -> Response:
            """A page of a tenant's agents, and whose there are."""
            seen = self._agents.seen(request.query_params.get("tenant"), _offset(request))
            return await asyncio.to_thread(lambda: _json(agents_page(seen)))

    def _add_gained(self, app: FastAPI) -> None:
        gains = self.gains

        @app.get("/ui/data/gained")
        async def gained() -> Response:
            """What Kairos gained, as it was found out last, or how far that is."""
            return _json(gains.view())

        @app.get("/ui/data/gained/workflow")
        async def workflow(request: Request) -> Response:
            """The same of one workflow."""
            said = request.query_params
            return _json(gains.workflow(said.get("tenant", ""), said.get("id", "")))

        @app.post(f"{ASK}gained")
        async def start() -> Response:
            """Find it out, unless that was done a moment ago."""
            gains.start(self._workflows.now())
            return _json(gains.view())

        @app.post(f"{ASK}gained/stop")
        async def stop() -> Response:
            gains.stop()
            return _json(gains.view())

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        async for picture in self._watch.pictures():
            yield b"data: %b\n\n" % picture


class Deciding(Watched, HearsEvents, Protocol):
    """What decides in this process, and hears of what happened."""


def ui_of(
    brain: Deciding,
    fleet: Fleet,
    telemetry: Telemetry,
    orchestrator: Orchestrator | None,
    settings: Settings,
) -> Ui:
    """`orchestrator`: None where another process follows the workflows."""
    return Ui(
        Now(brain, fleet, telemetry, orchestrator),
        Workflows(brain, orchestrator),
        Agents(brain, orchestrator),
        Gains(settings),
        Acts(fleet, brain, orchestrator, is_audited=settings.audit_log is not None),
    )


def _add_files(app: FastAPI) -> None:
    assets = read_assets()
    for path, name in _PAGES.items():
        app.add_api_route(path, assets[name].response, include_in_schema=False)

    @app.get("/ui/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise HTTPException(404)
        return asset.response()


def _offset(request: Request) -> int:
    return number_of(request, "offset", 0, 0, MAX_OFFSET)


def _query(request: Request) -> WorkflowQuery:
    """What is empty is not asked for. Raises InvalidRequest."""
    said = {name: value for name, value in request.query_params.items() if value}
    said.pop("offset", None)
    try:
        return msgspec.convert(said, WorkflowQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"there are no such workflows: {error}") from None


def _json(view: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json", headers=dict(HEADERS))
