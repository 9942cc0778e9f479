"""Assembly of a worker process, which performs calls: a gateway without the decisions."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial

from kairos.batches import serving_batches
from kairos.cluster.workers.fact_sink import RemoteFactSink
from kairos.cluster.workers.messages import ASKED, FACTS, Setup
from kairos.cluster.workers.relay import Relay
from kairos.gateway import (
    Access,
    Gateway,
    HttpServer,
    ServiceClasses,
    ServiceTls,
    access_of,
    clients_front,
    limits_of,
    pages_of,
    serving_ports,
)
from kairos.host import WallClock
from kairos.observe import count_errors, flush_tasks, open_audit_log, open_tracing
from kairos.proxy import EngineClient, HttpEngine, tell_progress
from kairos.request import Bodies, PromptTokens, Tokenizers
from kairos.settings import Settings, classes_by_name
from kairos.workflows import flows_online, open_flows

Change = Callable[[Settings], None]


@contextlib.asynccontextmanager
async def working(setup: Setup) -> AsyncIterator[Change]:
    """Serve until the block ends; then finish running calls.

    Yield the function that applies changed settings.
    """
    settings = setup.settings
    tls = ServiceTls(settings)
    access = access_of(settings)
    bodies = Bodies(settings.max_body_bytes, _share(settings), settings.caller_share)
    with (
        socket.socket(fileno=setup.sockets["clients"]) as sock,
        contextlib.closing(Tokenizers(settings.tokenizer)) as tokenizers,
        open_audit_log(settings.audit_log) as audit,
    ):
        async with (
            open_tracing(settings.telemetry, setup.directory) as tracing,
            EngineClient(
                stall_s=settings.stall_s,
                answer_s=settings.answer_s,
                longest_answer_s=settings.longest_answer_s,
                pass_headers=settings.pass_headers,
            ) as client,
            open_flows(settings) as kept_flows,
            contextlib.AsyncExitStack() as stack,
        ):
            engine = HttpEngine(client)
            name = f"{setup.name} {secrets.token_hex(8)}"
            sink = RemoteFactSink(
                setup.path(FACTS), name, engine, WallClock(), max_wait_s=settings.max_wait_s
            )
            on_error = count_errors(sink.count_error, audit)
            gateway = Gateway(
                settings,
                sink,
                engine,
                access,
                PromptTokens(tokenizers),
                bodies,
                served_models=list,
                on_trouble=sink.hear_of,
                on_error=on_error,
                tracing=tracing,
            )
            batches = await stack.enter_async_context(
                serving_batches(settings.batches, access, gateway)
            )
            flows = flows_online(kept_flows, access, gateway)
            rooms = batches.add_to, flows
            app = clients_front(sink, (Relay(setup.path(ASKED)),), access, rooms, on_error)
            # Calls that finish after the end of serving need the sink still.
            telling = asyncio.create_task(sink.run())
            try:
                beside = [
                    tell_progress(engine.calls, sink.feed),
                    engine.stall_watch.run(),
                    *access.background(),
                    *flush_tasks(audit),
                    *batches.background(),
                ]
                limits = limits_of(settings, sink.count_error)
                server = HttpServer(
                    app, gateway, limits, tls.callers, pages_of(settings, access, on_error)
                )
                async with serving_ports({sock: server}, beside):
                    yield partial(_change, access, gateway, bodies, tls)
                await sink.finish()
            finally:
                telling.cancel()


def _change(
    access: Access, gateway: Gateway, bodies: Bodies, tls: ServiceTls, settings: Settings
) -> None:
    access.change_keys(settings.key, needed=settings.asks_for_keys)
    known = classes_by_name(settings.service_class)
    access.know_classes(known)
    gateway.classes = ServiceClasses(known)
    bodies.max_bytes = settings.max_body_bytes
    bodies.max_held_bytes = _share(settings)
    tls.change_files(settings)


def _share(settings: Settings) -> int:
    """Return this worker's share of the bytes of bodies; one body always fits."""
    return max(settings.max_held_bytes // settings.workers, settings.max_body_bytes)
