"""Flows in a process that serves clients, if a directory is set for them."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kairos.core import SetupError
from kairos.gateway import Access, Gateway, NamesOf
from kairos.settings import FlowSettings, Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kairos.workflows.serve.flows_on import OpenFlows


@contextlib.contextmanager
def flow_names(settings: FlowSettings | None) -> Iterator[NamesOf | None]:
    """Yield a function that names the flows of a tenant as models; None if flows are off.

    For a process that runs no invocations itself.

    Raises:
        SetupError: the directory cannot hold flows.
    """
    if settings is None:
        yield None
        return
    from kairos.workflows.serve.flow_models import model_names
    from kairos.workflows.serve.flow_store import FlowStore

    with contextlib.closing(FlowStore(settings)) as store:
        yield partial(model_names, store)


@contextlib.asynccontextmanager
async def open_flows(settings: Settings) -> AsyncIterator["OpenFlows | None"]:
    """Yield the opened resources of flows; None if no directory is set.

    Raises:
        SetupError: the directory cannot hold flows, the functions cannot be loaded, or the
            embedders, rerankers or collections of flows cannot be reached.
    """
    if settings.flows is None:
        if settings.retrieval is not None:
            raise SetupError("[retrieval] is for flows: set directory of [flows], too")
        yield None
        return
    from kairos.workflows.serve.flows_on import opened_flows

    async with opened_flows(settings, settings.flows) as opened:
        yield opened


def flows_online(
    opened: "OpenFlows | None", access: Access, gateway: Gateway
) -> "Callable[[FastAPI], None]":
    """Return a function that adds the routes of flows; the gateway accepts flows as models.

    Call it before the routes that pass requests on are added.
    """
    if opened is None:
        return partial(_refuse_flows, access)
    from kairos.workflows.serve.flows_on import routes_online

    return routes_online(opened, access, gateway).add_to


def _refuse_flows(access: Access, app: "FastAPI") -> None:
    from kairos.gateway import refuse_routes
    from kairos.workflows.serve.records import FlowsOff

    refuse_routes(app, access, FlowsOff, ["/v1/flows"], ["GET", "PUT", "POST", "DELETE"])
