"""The page's routes, on the operators' port, below `PAGE` (`operators.py`).

`GET` only reads; routes below `ASK` start computations, routes below `ACT` act (`acts.py`).

The page of `kairos orchestrate` has workflows and agents only, since it does not decide. Its other
parts refer to the process that decides. Clients use the same port for their tenant's data, so only
paths below `PAGE` are for operators alone (`PageGuard`).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.core import InvalidRequest
from kairos.engines import Fleet
from kairos.gateway.api.fastapi_parts import json_body, json_response, number_of
from kairos.gateway.api.insight import Source
from kairos.gateway.auth.access import Access
from kairos.gateway.operators.admin import read_engine
from kairos.gateway.operators.operators import ACT, ASK, PAGE, Operators
from kairos.gateway.page.acts import Acts, CannotAct, MayAct, NamedWorkflow
from kairos.gateway.page.agents import Agents
from kairos.gateway.page.assets import HEADERS, read_assets
from kairos.gateway.page.gains import Gains, WorkflowGain
from kairos.gateway.page.now import QUEUE_PAGE, Now
from kairos.gateway.page.pages import OperatorsPage, Watch
from kairos.gateway.page.past import PastQuestion
from kairos.gateway.page.workflows import WorkflowQuery, Workflows, explain_workflow, find_workflows
from kairos.observe import AuditLog

MAX_OFFSET = 1_000_000
_LIMIT_BYTES = 16 << 10
_RECONNECT_MS = 1_000
# The file of each path.
_FOLLOWED = {
    "/ui/workflows": "workflows.html",
    "/ui/workflow": "workflow.html",
    "/ui/agents": "agents.html",
}
_OF_DECIDER = {
    PAGE: "now.html",
    "/ui/gained": "gained.html",
    "/ui/past": "past.html",
    "/ui/operate": "operate.html",
}
T = TypeVar("T")


def add_page(app: FastAPI, page: OperatorsPage) -> None:
    """Add all routes of a process that decides."""
    add_files(app, _OF_DECIDER | _FOLLOWED)
    _add_now(app, page.now, page.watch)
    add_workflows(app, page.workflows)
    add_agents(app, page.agents)
    _add_gained(app, page.gains, page.workflows)

    @app.post(f"{ASK}past")
    async def ask(request: Request) -> Response:
        """Return what happened at a past time."""
        found = await page.past.ask_past(await _said(request, PastQuestion))
        return Response(found, media_type="application/json", headers=dict(HEADERS))

    _add_acts(app, page.acts)
    _add_engines(app, page.acts, page.fleet)


def add_follower_pages(
    app: FastAPI, follower: Source, access: Access, names: tuple[str, ...], audit: AuditLog | None
) -> Agents:
    """Add the page of a process that only follows; return the agents to `run` in the background.

    `names` are host names that requests may use, in addition to addresses (`cors.py`).
    """
    agents = Agents(follower.now, lambda: follower.estimates, lambda: follower.orchestrator)
    add_files(app, dict.fromkeys(_OF_DECIDER, "elsewhere.html") | _FOLLOWED)
    add_workflows(app, Workflows(follower, lambda: follower.orchestrator))
    add_agents(app, agents)

    @app.get("/ui/data/me")
    async def me(request: Request) -> Response:
        """Return the user; no action is possible here."""
        return _json(
            MayAct(
                name=request.state.caller.name,
                may_act=False,
                why_not="this process only follows workflows: use the page of one that decides",
                may_reload=False,
                may_change_engines=False,
            )
        )

    @app.get("/ui/data/gained/workflow")
    async def gained() -> Response:
        """Return an empty result: this process has no data on it."""
        return _json(WorkflowGain(others=[], times=None))

    app.add_middleware(PageGuard, access=access, names=names, audit=audit)
    return agents


class PageGuard:
    """Middleware that enforces operators' access on the page's paths, and on no others."""

    def __init__(
        self, app: ASGIApp, access: Access, names: tuple[str, ...], audit: AuditLog | None
    ) -> None:
        self._app, self._guarded = app, Operators(app, access, names, audit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = f"{scope.get('path', '')}/".startswith(f"{PAGE}/")
        await (self._guarded if is_page else self._app)(scope, receive, send)


def add_files(app: FastAPI, pages: Mapping[str, str]) -> None:
    """Add the routes of static files. `pages` maps each path to its file."""
    assets = read_assets()
    for path, name in pages.items():
        app.add_api_route(path, assets[name].response, include_in_schema=False)

    @app.get("/ui/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise HTTPException(404)
        return asset.response()


def _add_now(app: FastAPI, seen: Now, watch: Watch) -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % _RECONNECT_MS
        async for picture in watch.pictures():
            yield b"data: %b\n\n" % picture

    @app.get("/ui/data/now")
    async def now() -> Response:
        """Return the present state once."""
        return _json(seen.view())

    @app.get("/ui/data/queue")
    async def queue(request: Request) -> Response:
        """Return a page of the queue, in order."""
        return _json(seen.queue(_offset_of(request), QUEUE_PAGE))

    @app.get("/ui/live")
    async def live() -> Response:
        """Stream the present state every second, as server-sent events."""
        watch.check()
        return StreamingResponse(events(), media_type="text/event-stream", headers=dict(HEADERS))


def add_workflows(app: FastAPI, workflows: Workflows) -> None:
    @app.get("/ui/data/workflows")
    async def search(request: Request) -> Response:
        """Return a page of the workflows that match the query."""
        query, offset = _query(request), _offset_of(request)
        remembered, at = workflows.remembered()
        # In a thread: there may be 100,000.
        return await asyncio.to_thread(lambda: _json(find_workflows(remembered, query, offset, at)))

    @app.get("/ui/data/workflow")
    async def one(request: Request) -> Response:
        """Return one workflow, with a page of its calls, each explained."""
        said, offset = request.query_params, _offset_of(request)
        seen = workflows.snapshot(said.get("tenant", ""), said.get("id", ""))
        return await asyncio.to_thread(lambda: _json(explain_workflow(seen, offset)))


def add_agents(app: FastAPI, agents: Agents) -> None:
    @app.get("/ui/data/agents")
    async def of_a_tenant(request: Request) -> Response:
        """Return a page of a tenant's agents, and all tenants with agents."""
        page = agents.page(request.query_params.get("tenant"), _offset_of(request))
        return await asyncio.to_thread(lambda: _json(page()))

    @app.get("/ui/data/agents/history")
    async def over_time(request: Request) -> Response:
        """Return the history of one agent."""
        said = request.query_params
        named = (said.get(name, "") for name in ("tenant", "app", "agent"))
        return _json(agents.history(*named))


def _add_gained(app: FastAPI, gains: Gains, workflows: Workflows) -> None:
    @app.get("/ui/data/gained")
    async def gained() -> Response:
        """Return the last comparison, or the progress of the running one."""
        return _json(gains.view())

    @app.get("/ui/data/gained/workflow")
    async def workflow(request: Request) -> Response:
        """Return the last comparison's results for one workflow."""
        said = request.query_params
        return _json(gains.workflow(said.get("tenant", ""), said.get("id", "")))

    @app.post(f"{ASK}gained")
    async def start() -> Response:
        """Start a comparison, unless there is a recent one."""
        gains.start(workflows.now())
        return _json(gains.view())

    @app.post(f"{ASK}gained/stop")
    async def stop() -> Response:
        gains.stop()
        return _json(gains.view())


def _add_acts(app: FastAPI, acts: Acts) -> None:
    @app.get("/ui/data/me")
    async def me(request: Request) -> Response:
        """Return the user, and whether they may act."""
        return _json(acts.me(request.state.caller))

    @app.post(f"{ACT}cancel")
    async def cancel(request: Request) -> Response:
        acts.check(request.state.caller)
        named = await _said(request, NamedWorkflow)
        request.state.changed = f"{named.tenant} {named.id}"
        acts.cancel(named)
        return _json({"id": named.id})

    @app.post(f"{ACT}reload")
    async def reload(request: Request) -> Response:
        """Reload the settings, as on SIGHUP."""
        acts.check(request.state.caller)
        if acts.reload is None:
            raise CannotAct("this process cannot reload; send SIGHUP to the main process")
        return _json(acts.reload())


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


def _add_engines(app: FastAPI, acts: Acts, fleet: Fleet) -> None:
    @app.get("/ui/data/engines")
    async def engines() -> Response:
        """Return each engine, as `/admin/instances` does."""
        return _json({"instances": fleet.views()})

    @app.post(f"{ACT}add")
    async def add(request: Request) -> Response:
        """Add an engine, or use a draining one again."""
        acts.check(request.state.caller, engines=True)
        engine = await read_engine(request)
        request.state.changed = engine.id
        return _json(fleet.add(engine))

    @app.post(f"{ACT}drain")
    async def drain(request: Request) -> Response:
        """Drain an engine: it gets no new calls, and is removed after its last call."""
        acts.check(request.state.caller, engines=True)
        named = await _said(request, _Named)
        request.state.changed = named.id
        return _json(fleet.drain(named.id))


def _json(content: object) -> Response:
    return json_response(content, headers=HEADERS)


async def _said(request: Request, kind: type[T]) -> T:
    otherwise = "the page and Kairos have different versions"
    return await json_body(request, kind, _LIMIT_BYTES, otherwise)


def _offset_of(request: Request) -> int:
    return number_of(request, "offset", 0, 0, MAX_OFFSET)


def _query(request: Request) -> WorkflowQuery:
    """Parse the query; empty fields are ignored. Raises InvalidRequest: A field is malformed."""
    said = {name: value for name, value in request.query_params.items() if value}
    said.pop("offset", None)
    try:
        return msgspec.convert(said, WorkflowQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"there are no such workflows: {error}") from None
