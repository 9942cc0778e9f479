"""The page's routes, on the operators' port, below `PAGE` (`operators.py`).

These only read; routes below `ASK` start computations; actions are in `acts.py`.
"""

from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.core import FactSink, Orchestrator, WorkEstimates
from kairos.engines import Fleet
from kairos.gateway.operators.operators import ASK, PAGE
from kairos.gateway.operators.operators_front import Decides
from kairos.gateway.page.acts import Acts, read_said
from kairos.gateway.page.agents import AgentHistory, Agents
from kairos.gateway.page.assets import HEADERS, json_response
from kairos.gateway.page.gains import Gains
from kairos.gateway.page.now import QUEUE_PAGE, Now
from kairos.gateway.page.past import Past, PastQuestion
from kairos.gateway.page.watch import Watch
from kairos.gateway.page.workflows import FollowedElsewhere, Workflows
from kairos.observe import Telemetry
from kairos.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

# The file of each path.
_PAGES = {
    PAGE: "now.html",
    "/ui/workflows": "workflows.html",
    "/ui/workflow": "workflow.html",
    "/ui/agents": "agents.html",
    "/ui/gained": "gained.html",
    "/ui/past": "past.html",
    "/ui/operate": "operate.html",
}
_RECONNECT_MS = 1_000


class Ui:
    """The page of one process. Run its `background` concurrently with the server."""

    def __init__(
        self,
        now: Now,
        workflows: Workflows,
        agents: tuple[Agents, AgentHistory],
        gains: Gains,
        past: Past,
        acts: Acts,
    ) -> None:
        self._now, self._workflows = now, workflows
        self._agents, self._history = agents
        self.gains, self._past, self.acts = gains, past, acts
        self._watch = Watch(lambda: msgspec.json.encode(now.view()))

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self._watch.run(), self.gains.run(), self._history.run()]

    def add_to(self, app: "FastAPI") -> None:
        from kairos.gateway.page.looks import add_agents, add_files, add_workflows

        add_files(app, _PAGES)
        self._add_now(app)
        add_workflows(app, self._workflows)
        add_agents(app, self._agents, self._history)
        self._add_gained(app)
        self._add_past(app)
        self.acts.add_to(app)

    def _add_now(self, app: "FastAPI") -> None:
        from fastapi import Request
        from fastapi.responses import Response, StreamingResponse

        from kairos.gateway.page.looks import offset_of

        @app.get("/ui/data/now")
        async def now() -> Response:
            """Return the present state once."""
            return json_response(self._now.view())

        @app.get("/ui/data/queue")
        async def queue(request: Request) -> Response:
            """Return a page of the queue, in order."""
            return json_response(self._now.queue(offset_of(request), QUEUE_PAGE))

        @app.get("/ui/live")
        async def live() -> Response:
            """Stream the present state every second, as server-sent events."""
            self._watch.check()
            return StreamingResponse(
                self._events(), media_type="text/event-stream", headers=dict(HEADERS)
            )

    def _add_gained(self, app: "FastAPI") -> None:
        from fastapi import Request
        from fastapi.responses import Response

        gains = self.gains

        @app.get("/ui/data/gained")
        async def gained() -> Response:
            """Return the last comparison, or the progress of the running one."""
            return json_response(gains.view())

        @app.get("/ui/data/gained/workflow")
        async def workflow(request: Request) -> Response:
            """Return the last comparison's results for one workflow."""
            said = request.query_params
            return json_response(gains.workflow(said.get("tenant", ""), said.get("id", "")))

        @app.post(f"{ASK}gained")
        async def start() -> Response:
            """Start a comparison, unless there is a recent one."""
            gains.start(self._workflows.now())
            return json_response(gains.view())

        @app.post(f"{ASK}gained/stop")
        async def stop() -> Response:
            gains.stop()
            return json_response(gains.view())

    def _add_past(self, app: "FastAPI") -> None:
        from fastapi import Request
        from fastapi.responses import Response

        @app.post(f"{ASK}past")
        async def past(request: Request) -> Response:
            """Return what happened at a past time."""
            found = await self._past.ask_past(await read_said(request, PastQuestion))
            return Response(found, media_type="application/json", headers=dict(HEADERS))

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        async for picture in self._watch.pictures():
            yield b"data: %b\n\n" % picture


class Deciding(Decides, FactSink, Protocol):
    """A balancer in this process that also takes facts."""


def page_of(
    brain: Deciding,
    fleet: Fleet,
    telemetry: Telemetry,
    orchestrator: Orchestrator | None,
    settings: Settings,
    *,
    changes_engines: bool = True,
) -> Ui:
    """Create the page. `orchestrator`: None where another process follows the workflows."""

    def followed() -> Orchestrator:
        if orchestrator is None:
            raise FollowedElsewhere
        return orchestrator

    def estimates() -> WorkEstimates:
        return brain.balancer.estimates

    return Ui(
        Now(brain, fleet, telemetry, orchestrator),
        Workflows(brain, followed),
        (Agents(estimates, followed), AgentHistory(brain.now, estimates, followed)),
        Gains(settings),
        Past(settings.log_dir),
        Acts(
            *(fleet, brain, orchestrator),
            is_audited=settings.audit_log is not None,
            changes_engines=changes_engines,
        ),
    )
