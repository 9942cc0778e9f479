"""Flows where a directory is named: what they need, and their routes."""

import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import msgspec

from kairos.config import Settings
from kairos.flow.functions import Functions
from kairos.flow.python_file import load_functions
from kairos.flow_settings import FlowSettings
from kairos.live.flows.flow_models import FlowModels
from kairos.live.flows.flow_routes import FlowRoutes
from kairos.live.flows.flow_store import FlowStore, InvocationCounts
from kairos.live.flows.invoking import Invoking
from kairos.live.frontend.gateway import Gateway
from kairos.live.process.clock import WallClock
from kairos.live.remote.opened import AnyProcessors, opened_processors
from kairos.live.request.access import Access

_THREADS = 4  # more than a tenant has (`invoking.py`)


class OpenFlows(msgspec.Struct, frozen=True):
    """What flows need, before there is a gateway."""

    settings: FlowSettings
    store: FlowStore
    counts: InvocationCounts
    functions: Functions
    processors: AnyProcessors | None
    threads: Executor  # where flows compute: apart from what waits for disks


@contextlib.asynccontextmanager
async def opened_flows(settings: Settings, of_flows: FlowSettings) -> AsyncIterator[OpenFlows]:
    """Open what the settings name.

    Raises:
        SetupError: the directory cannot hold flows, the functions cannot be loaded, or what flows
            retrieve with cannot be reached.
    """
    functions, retrieval = Functions(), settings.retrieval
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


def routes_online(opened: OpenFlows, access: Access, gateway: Gateway) -> FlowRoutes:
    """The gateway takes them for models from now on."""
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
