"""Flows in a process with a directory for them: their resources and routes."""

import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import msgspec

from kairos.gateway import Access, Gateway
from kairos.host import WallClock
from kairos.settings import FlowSettings, Settings
from kairos.workflows.declare.functions import Functions
from kairos.workflows.declare.python_file import load_functions
from kairos.workflows.retrieve.flow_processors import ProcessorService, processor_service
from kairos.workflows.serve.flow_models import FlowModels
from kairos.workflows.serve.flow_routes import FlowRoutes
from kairos.workflows.serve.flow_store import FlowStore, InvocationCounts
from kairos.workflows.serve.invoking import Invoking

_THREADS = 4  # more than one tenant may use (`invoking.py`)


class OpenFlows(msgspec.Struct, frozen=True):
    """Resources of flows, opened before the gateway."""

    settings: FlowSettings
    store: FlowStore
    counts: InvocationCounts
    functions: Functions
    processors: ProcessorService | None
    threads: Executor  # for computing flows; other threads wait for disks


@contextlib.asynccontextmanager
async def opened_flows(settings: Settings, of_flows: FlowSettings) -> AsyncIterator[OpenFlows]:
    """Open the resources of flows that the settings name: see `open_flows`."""
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
                processor_service(retrieval, os.environ, counts.add_processed)
            )
        yield OpenFlows(of_flows, store, counts, functions, found, threads)


def routes_online(opened: OpenFlows, access: Access, gateway: Gateway) -> FlowRoutes:
    """Return the routes of flows, and let the gateway accept flows as models."""
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
