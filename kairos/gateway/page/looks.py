"""Routes of the page that show workflows and agents, and routes of its static files."""

import asyncio
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from kairos.core import InvalidRequest
from kairos.gateway.api.insight import number_of
from kairos.gateway.page.agents import AgentHistory, Agents, agents_page
from kairos.gateway.page.assets import json_response, read_assets
from kairos.gateway.page.workflows import WorkflowQuery, Workflows, explain_workflow, find_workflows

MAX_OFFSET = 1_000_000


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


def add_workflows(app: FastAPI, workflows: Workflows) -> None:
    @app.get("/ui/data/workflows")
    async def search(request: Request) -> Response:
        """Return a page of the workflows that match the query."""
        query, offset = _query(request), offset_of(request)
        remembered, at = workflows.remembered()
        # In a thread: there may be 100,000.
        return await asyncio.to_thread(
            lambda: json_response(find_workflows(remembered, query, offset, at))
        )

    @app.get("/ui/data/workflow")
    async def one(request: Request) -> Response:
        """Return one workflow, with a page of its calls, each explained."""
        said, offset = request.query_params, offset_of(request)
        seen = workflows.snapshot(said.get("tenant", ""), said.get("id", ""))
        return await asyncio.to_thread(lambda: json_response(explain_workflow(seen, offset)))


def add_agents(app: FastAPI, agents: Agents, history: AgentHistory) -> None:
    @app.get("/ui/data/agents")
    async def of_a_tenant(request: Request) -> Response:
        """Return a page of a tenant's agents, and all tenants with agents."""
        seen = agents.snapshot_of(request.query_params.get("tenant"), offset_of(request))
        return await asyncio.to_thread(lambda: json_response(agents_page(seen)))

    @app.get("/ui/data/agents/history")
    async def over_time(request: Request) -> Response:
        """Return the history of one agent."""
        said = request.query_params
        named = (said.get(name, "") for name in ("tenant", "app", "agent"))
        return json_response(history.view(*named))


def offset_of(request: Request) -> int:
    return number_of(request, "offset", 0, 0, MAX_OFFSET)


def _query(request: Request) -> WorkflowQuery:
    """Parse the query; empty fields are ignored. Raises InvalidRequest: A field is malformed."""
    said = {name: value for name, value in request.query_params.items() if value}
    said.pop("offset", None)
    try:
        return msgspec.convert(said, WorkflowQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"there are no such workflows: {error}") from None
