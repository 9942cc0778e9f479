"""The page of `kairos orchestrate`: workflows and agents only, since it does not decide.

Its other parts refer to the process that decides. Clients use the same port for their tenant's
data, so only paths below `PAGE` are for operators alone (`PageGuard`).
"""

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos.gateway.api.insight import Source
from kairos.gateway.auth.access import Access
from kairos.gateway.operators.operators import PAGE, Operators
from kairos.gateway.page.acts import MayAct
from kairos.gateway.page.agents import AgentHistory, Agents
from kairos.gateway.page.assets import json_response
from kairos.gateway.page.gains import WorkflowGain
from kairos.gateway.page.looks import add_agents, add_files, add_workflows
from kairos.gateway.page.workflows import Workflows
from kairos.gateway.server.hosts import KnownHosts
from kairos.observe import AuditLog

_PAGES = {
    PAGE: "elsewhere.html",
    "/ui/past": "elsewhere.html",
    "/ui/gained": "elsewhere.html",
    "/ui/operate": "elsewhere.html",
    "/ui/workflows": "workflows.html",
    "/ui/workflow": "workflow.html",
    "/ui/agents": "agents.html",
}


def add_follower_pages(
    app: FastAPI, follower: Source, access: Access, names: tuple[str, ...], audit: AuditLog | None
) -> AgentHistory:
    """Add the page; return the history to `run` in the background.

    `names` are host names that requests may use, in addition to addresses (`hosts.py`).
    """
    history = AgentHistory(follower.now, lambda: follower.estimates, lambda: follower.orchestrator)
    add_files(app, _PAGES)
    add_workflows(app, Workflows(follower, lambda: follower.orchestrator))
    agents = Agents(lambda: follower.estimates, lambda: follower.orchestrator)
    add_agents(app, agents, history)

    @app.get("/ui/data/me")
    async def me(request: Request) -> Response:
        """Return the user; no action is possible here."""
        return json_response(
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
        return json_response(WorkflowGain(others=[], times=None))

    def guard(inner: ASGIApp) -> ASGIApp:
        return KnownHosts(Operators(inner, access=access, audit=audit), names, audit)

    app.add_middleware(PageGuard, guard=guard)
    return history


class PageGuard:
    """Middleware that enforces operators' access on the page's paths, and on no others."""

    def __init__(self, app: ASGIApp, guard: Callable[[ASGIApp], ASGIApp]) -> None:
        self._app, self._guarded = app, guard(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = f"{scope.get('path', '')}/".startswith(f"{PAGE}/")
        await (self._guarded if is_page else self._app)(scope, receive, send)
