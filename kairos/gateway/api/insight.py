"""Routes that show workflows and agents, end workflows, and declare the plan of an app's workflows.

Each client sees only its own tenant's.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos.core import (
    IDENTIFIER_PATTERN,
    MAX_CALLS,
    FactSink,
    InvalidRequest,
    OpenedWorkflow,
    Orchestrator,
    PlanDeclared,
    PlannedWork,
    WorkEstimates,
    WorkflowEnded,
    WorkflowNotFound,
    check_plan,
)
from kairos.gateway.api.fastapi_parts import json_body, json_response, number_of
from kairos.gateway.auth.access import Access, authorization_of
from kairos.observe import agents_view, workflow_snapshot, workflow_view

CALLS, AGENTS, MAX_AGENTS = 1_000, 100, 1_000  # of one answer
MAX_OFFSET = 10**9
MOST_BYTES = 32 << 10  # of a plan: its fact must fit into a message of the bus
_NAME = re.compile(IDENTIFIER_PATTERN)


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


def add_ends(
    app: FastAPI, access: Access, end: Callable[[WorkflowEnded], Awaitable[Response]]
) -> None:
    """Add the routes that end a workflow. Its id may contain slashes."""

    async def told(request: HttpRequest, workflow_id: str, *, cancelled: bool) -> Response:
        tenant = (await access.admitted_caller(authorization_of(request))).tenant
        return await end(WorkflowEnded(tenant, workflow_id, cancelled))

    @app.post("/v1/workflows/{workflow_id:path}/end")
    async def end_one(request: HttpRequest, workflow_id: str) -> Response:
        """End a workflow whose user has the final reply. Repeated requests change nothing."""
        return await told(request, workflow_id, cancelled=False)

    @app.delete("/v1/workflows/{workflow_id:path}")
    async def cancel(request: HttpRequest, workflow_id: str) -> Response:
        """Cancel a workflow: its calls end, and further ones are refused."""
        return await told(request, workflow_id, cancelled=True)


def add_insight(app: FastAPI, access: Access, source: Source) -> None:
    """Add the routes. Ids of workflows may contain slashes."""

    async def end(event: WorkflowEnded) -> Response:
        workflow = _find(source, event.tenant, event.workflow_id)
        if workflow.ended_at is None:
            await source.end(event)
        status = 202 if workflow.ended_at is None else 200
        return json_response(Ended(id=event.workflow_id, ended_at=workflow.ended_at), status)

    add_ends(app, access, end)

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


class DeclaredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `PUT /v1/plans/{app}`."""

    id: str  # the app whose workflows it holds for
    object: str = "plan"
    operators: int


def add_plans(app: FastAPI, access: Access, told: FactSink) -> None:
    @app.put("/v1/plans/{name:path}")
    async def put(request: HttpRequest, name: str) -> Response:
        """Declare the plan of an app's workflows; it applies where no call is in flight yet.

        A key of one app declares that app's plan, regardless of the path.
        """
        caller = await access.admitted_caller(authorization_of(request))
        of_app = caller.app or name
        if not _NAME.match(of_app):
            raise InvalidRequest("the app's name has 1 to 128 letters, digits and _.:@/+=-")
        plan = await json_body(request, PlannedWork, MOST_BYTES, "the body is not a plan")
        check_plan(plan)
        told.feed(PlanDeclared(caller.tenant, of_app, plan))
        answer = DeclaredPlan(id=of_app, operators=len(plan.operators))
        return json_response(answer)
