"""Routes that show workflows and agents, and end workflows.

Each client sees only its own tenant's.
"""

import asyncio
from typing import Protocol

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos.core import (
    MAX_CALLS,
    OpenedWorkflow,
    Orchestrator,
    WorkEstimates,
    WorkflowEnded,
    WorkflowNotFound,
)
from kairos.gateway.api.fastapi_parts import json_response, number_of
from kairos.gateway.auth.access import Access, authorization_of
from kairos.observe import agents_view, workflow_snapshot, workflow_view

CALLS, AGENTS, MAX_AGENTS = 1_000, 100, 1_000  # of one answer
MAX_OFFSET = 10**9


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Response of `POST /v1/workflows/{id}/end`."""

    id: str
    object: str = "workflow"
    ended_at: int | None  # None: the end was forwarded, and takes effect soon


class Source(Protocol):
    """Source of followed workflows. All members may raise Unavailable."""

    @property
    def orchestrator(self) -> Orchestrator: ...

    @property
    def estimates(self) -> WorkEstimates:
        """Estimates as published."""

    def now(self) -> int: ...

    async def end(self, event: WorkflowEnded) -> None: ...


def add_insight(app: FastAPI, access: Access, source: Source) -> None:
    """Add the routes. Ids of workflows may contain slashes."""

    async def told_of_end(request: HttpRequest, workflow_id: str, *, cancelled: bool) -> Response:
        tenant = (await access.admitted_caller(authorization_of(request))).tenant
        workflow = _find(source, tenant, workflow_id)
        if workflow.ended_at is None:
            await source.end(WorkflowEnded(tenant, workflow_id, cancelled))
        status = 202 if workflow.ended_at is None else 200
        return json_response(Ended(id=workflow_id, ended_at=workflow.ended_at), status)

    @app.post("/v1/workflows/{workflow_id:path}/end")
    async def end(request: HttpRequest, workflow_id: str) -> Response:
        """End a workflow whose user has the final reply. Repeated requests change nothing."""
        return await told_of_end(request, workflow_id, cancelled=False)

    @app.delete("/v1/workflows/{workflow_id:path}")
    async def cancel(request: HttpRequest, workflow_id: str) -> Response:
        """Cancel a workflow: its calls end, and further ones are refused."""
        return await told_of_end(request, workflow_id, cancelled=True)

    @app.get("/v1/workflows/{workflow_id:path}")
    async def workflow(request: HttpRequest, workflow_id: str) -> Response:
        """Return the rebuilt graph and the calls of a workflow that is open or ended recently."""
        tenant = (await access.admitted_caller(authorization_of(request))).tenant
        return await _workflow(source, tenant, workflow_id, request)

    @app.get("/v1/agents")
    async def agents(request: HttpRequest) -> Response:
        """Return what was learnt of the tenant's agents, by app and name."""
        tenant = (await access.admitted_caller(authorization_of(request))).tenant
        return await _agents(source, tenant, request)


def add_tenants(app: FastAPI, source: Source) -> None:
    """Add the same routes for operators, for any tenant."""

    @app.get("/admin/tenants/{tenant}/workflows/{workflow_id:path}")
    async def workflow(request: HttpRequest, tenant: str, workflow_id: str) -> Response:
        """Return what `GET /v1/workflows/{id}` shows to the tenant."""
        return await _workflow(source, tenant, workflow_id, request)

    @app.get("/admin/tenants/{tenant}/agents")
    async def agents(request: HttpRequest, tenant: str) -> Response:
        """Return what `GET /v1/agents` shows to the tenant."""
        return await _agents(source, tenant, request)


def _find(source: Source, tenant: str, workflow_id: str) -> OpenedWorkflow:
    workflow = source.orchestrator.workflow(tenant, workflow_id)
    if workflow is None:
        raise WorkflowNotFound(workflow_id)
    return workflow


async def _workflow(
    source: Source, tenant: str, workflow_id: str, request: HttpRequest
) -> Response:
    offset, limit = _page(request, CALLS, MAX_CALLS)
    found, joins = _find(source, tenant, workflow_id), source.orchestrator.joins
    seen = workflow_snapshot(found, source.now(), joins)
    # In a thread: the graph of 10,000 calls takes 0.1 s and more.
    return await asyncio.to_thread(lambda: json_response(workflow_view(seen, offset, limit)))


async def _agents(source: Source, tenant: str, request: HttpRequest) -> Response:
    page = _page(request, AGENTS, MAX_AGENTS)
    view = agents_view(source.orchestrator, source.estimates, tenant, *page)
    return await asyncio.to_thread(lambda: json_response(view()))


def _page(request: HttpRequest, usual: int, most: int) -> tuple[int, int]:
    """Return the query's `offset` and `limit`."""
    offset = number_of(request, "offset", 0, 0, MAX_OFFSET)
    return offset, number_of(request, "limit", usual, 1, most)
