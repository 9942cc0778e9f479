"""Control of a process that performs calls for a pool, and can decide for it.

Gateways on Kafka and standalone balancers are built on it.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.topic_setup import ensure_topics
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.cells import Cells
from kairos.cluster.pool.member import PoolMember
from kairos.cluster.pool.performer import Performer
from kairos.core import (
    IDENTIFIER_PATTERN,
    Balancer,
    Entitlements,
    Event,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    InvalidRequest,
    Observer,
    Topic,
    WorkflowEnded,
    WorkflowNotFound,
)
from kairos.engines import Monitor
from kairos.gateway import GRACE_S, Access, add_ends, authorization_of
from kairos.host import WallClock
from kairos.observe import Telemetry
from kairos.proxy import CallsInFlight, HttpEngine, tell_progress
from kairos.request import PromptTokens
from kairos.settings import Settings

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
TOPICS = (Topic.REQUESTS, Topic.DISPATCHES, Topic.EVENTS, Topic.PROFILES, Topic.DEAD_LETTERS)


class AskTheOrchestrator(InvalidRequest):
    """Workflows are not known here: a gateway on a bus sees only its own calls."""

    status = 404
    code = "not_here"
    says = "workflows and agents are shown by `kairos orchestrate`, on its own port (8002)"


class OverPools:
    """Stand-in for a pool member in a gateway over several pools, which decides for none.

    `balancer` is idle: it knows no instance and no call.
    """

    active: None = None

    def __init__(self, cells: Cells, balancer: Balancer) -> None:
        self.cells, self.balancer = cells, balancer

    def feed(self, event: InstanceJoined | InstanceLeft | InstanceStatus) -> None:
        """Note which instances serve: workflows are spread over pools that can serve them."""
        self.cells.hear(event)

    def entitle(self, entitlements: Entitlements) -> None:
        """Do nothing: the balancers of the pools have these from the same settings."""

    async def run(self) -> None:
        """Do nothing."""


class ClusterControl:
    """Counterpart of `LocalControl` for a pool of processes, or for several pools.

    Workflows are followed by `kairos orchestrate`.
    """

    def __init__(
        self, calls: CallsInFlight, performer: Performer, member: "PoolMember | OverPools"
    ) -> None:
        self._calls = calls
        self.performer = performer
        self.member = member

    @property
    def balancer(self) -> Balancer:
        return self.member.balancer

    @property
    def decides(self) -> bool:
        return self.member.active is not None

    def now(self) -> int:
        return self.performer.now()

    def feed(self, event: Event) -> None:
        if isinstance(event, InstanceJoined | InstanceLeft | InstanceStatus):
            self.member.feed(event)
        else:
            self.performer.feed(event)

    def entitle(self, entitlements: Entitlements) -> None:
        """Apply these entitlements from now on, also when this process takes over later."""
        self.member.entitle(entitlements)

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self.member.run(), tell_progress(self._calls, self.performer.feed)]

    def add_insight(self, app: FastAPI, access: Access) -> None:
        """Add the routes that end a workflow; all others refer to the orchestrator."""

        async def end(event: WorkflowEnded) -> Response:
            if not _IDENTIFIER.match(event.workflow_id):
                raise WorkflowNotFound(event.workflow_id)
            self.performer.feed(event)
            return JSONResponse({"id": event.workflow_id, "object": "workflow"}, 202)

        add_ends(app, access, end)

        @app.get("/v1/workflows/{rest:path}")
        @app.get("/v1/agents")
        async def elsewhere(request: HttpRequest) -> None:
            await access.admitted_caller(authorization_of(request))
            raise AskTheOrchestrator

    def add_tenants(self, app: FastAPI) -> None:
        """Add routes that refer operators to the orchestrator."""

        @app.get("/admin/tenants/{rest:path}")
        async def elsewhere() -> None:
            raise AskTheOrchestrator


@contextlib.asynccontextmanager
async def pool_control(
    settings: Settings,
    cluster: KafkaCluster,
    cells: Cells,
    engine: HttpEngine,
    monitor: Monitor,
    telemetry: Telemetry,
    prompts: PromptTokens,
    new_balancer: Callable[[], Balancer],
    observers: tuple[Observer, ...],
) -> AsyncIterator[ClusterControl]:
    """Yield a control that performs calls; at the end, calls over the bus may finish.

    Raises:
        SetupError: The bus cannot be reached, or a topic has wrong settings.
    """
    await ensure_topics(cluster, TOPICS)
    clock, pool = WallClock(), settings.pool
    async with (
        Producer(cluster) as producer,
        Performer(
            cluster, cells, producer, engine.calls, clock, max_wait_s=settings.max_wait_s
        ) as performer,
        asyncio.TaskGroup() as tasks,
    ):
        performing = tasks.create_task(performer.run())
        try:
            if settings.is_over_pools:
                telemetry.show(cells)
                yield ClusterControl(engine.calls, performer, OverPools(cells, new_balancer()))
                return
            calls = BusCalls(
                performer,
                engine,
                producer,
                prompts,
                on_trouble=monitor.probe_after_failure,
                on_error=telemetry.count_error,
                max_held_bytes=settings.max_held_bytes,
            )
            member = PoolMember(
                cluster, pool, producer, performer, calls, clock, new_balancer, observers
            )
            yield ClusterControl(engine.calls, performer, member)
            await calls.finish(GRACE_S)
        finally:
            performing.cancel()
