"""Flows in a process that serves clients: their routes."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos.config import Settings
from kairos.errors import SetupError
from kairos.flow.functions import Functions
from kairos.flow.python_file import load_functions
from kairos.flow_settings import FlowSettings
from kairos.live.flows.flow_models import FlowModels, model_names
from kairos.live.flows.flow_routes import FlowRoutes
from kairos.live.flows.flow_store import FlowStore, InvocationCounts
from kairos.live.flows.invoking import Invoking
from kairos.live.flows.records import FlowsOff
from kairos.live.frontend.gateway import Gateway
from kairos.live.frontend.own_models import NamesOf
from kairos.live.process.clock import WallClock
from kairos.live.remote.opened import AnyProcessors, opened_processors
from kairos.live.request.access import Access, authorization

_THREADS = 4  # more than a tenant has (`invoking.py`)


class FlowService(Protocol):
    def add_to(self, app: FastAPI) -> None:
        """Add the routes, before those that pass requests on."""


class NoFlowService:
    """No directory is named."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def add_to(self, app: FastAPI) -> None:
        async def refuse(request: HttpRequest) -> Response:
            await self._access.admitted(authorization(request))
            raise FlowsOff

        for path in ("/v1/flows", "/v1/flows/{rest:path}"):
            app.api_route(path, methods=["GET", "PUT", "POST", "DELETE"])(refuse)


@contextlib.contextmanager
def flow_names(settings: FlowSettings | None) -> Iterator[NamesOf | None]:
    """Of a process that invokes none itself: which models they are.

    Raises:
        SetupError: the directory cannot hold flows.
    """
    if settings is None:
        yield None
        return
    with contextlib.closing(FlowStore(settings)) as store:
        yield partial(model_names, store)


class OpenFlows(msgspec.Struct, frozen=True):
    """What flows need, before there is a gateway."""

    settings: FlowSettings
    store: FlowStore
    counts: InvocationCounts
    functions: Functions
    processors: AnyProcessors | None
    threads: Executor  # where flows compute: apart from what waits for disks


@contextlib.asynccontextmanager
async def open_flows(settings: Settings) -> AsyncIterator[OpenFlows | None]:
    """None: no directory is named.

    Raises:
        SetupError: the directory cannot hold flows, the functions cannot be loaded, or what flows
            retrieve with cannot be reached.
    """
    of_flows, retrieval = settings.flows, settings.retrieval
    if of_flows is None:
        if retrieval is not None:
            raise SetupError("[retrieval] is what flows use: name directory of [flows], too")
        yield None
        return
    functions = Functions()
    if of_flows.functions is not None:
        functions = load_functions(Path(of_flows.functions))
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(FlowStore(of_flows)))
        counts = stack.enter_context(contextlib.closing(InvocationCounts(of_flows)))
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="flows")
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        found = None
        if retrieval is not None:
            found = await stack.enter_async_context(
                opened_processors(retrieval, os.environ, counts.add_processed)
            )
        yield OpenFlows(of_flows, store, counts, functions, found, threads)


def flows_online(opened: OpenFlows | None, access: Access, gateway: Gateway) -> FlowService:
    """The gateway takes them for models from now on."""
    if opened is None:
        return NoFlowService(access)
    now = WallClock().now
    invoking = Invoking(
        opened.store,
        opened.counts,
        gateway,
        opened.functions,
        opened.processors,
        opened.settings,
        opened.threads,
    )
    gateway.own_models = FlowModels(invoking, now)
    return FlowRoutes(invoking, access, gateway.bodies, opened.settings, now)
