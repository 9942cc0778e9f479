"""Puts a live Kairos together and runs it inside the caller's event loop."""

import contextlib
import os
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kairos.batches import batch_figures, serving_batches
from kairos.cluster import (
    Cells,
    LocalControl,
    Reload,
    balancer_changes,
    cluster_of,
    entitlement_changes,
    gateway_changes,
    new_balancer,
    policy_changes,
)
from kairos.core import SECOND, Balancer, Event, Learner, Observer, Orchestrator
from kairos.engines import Fleet, Monitor
from kairos.gateway import (
    Gateway,
    HttpServer,
    Models,
    OperatorsPage,
    Probes,
    ServiceTls,
    access_of,
    clients_front,
    limits_of,
    listening_socket,
    may_have_page,
    operators_front,
    pages_of,
    serving_ports,
    url_of,
)
from kairos.host import WallClock
from kairos.observe import (
    Telemetry,
    Tracing,
    count_errors,
    flush_tasks,
    note_start,
    open_audit_log,
    open_log,
    open_tracing,
    tracing_observers,
)
from kairos.proxy import EngineClient, EngineContexts, HttpEngine, tell_progress
from kairos.request import Bodies, PromptTokens, Tokenizers
from kairos.settings import Settings
from kairos.workflows import flows_online, invocation_figures, open_flows

if TYPE_CHECKING:
    from kairos.cluster import ClusterControl

    Brain = LocalControl | ClusterControl


class Service:
    """Running Kairos: its addresses, its brain, its view of the engines, and its reload."""

    def __init__(
        self, brain: "Brain", parts: "_Parts", reload: Reload, url: str, admin_url: str
    ) -> None:
        self.brain = brain
        self.monitor = parts.monitor
        self.fleet = parts.fleet
        self.reload = reload
        self.url = url
        self.admin_url = admin_url


class BrainPort:
    """Brain for parts that are built before it.

    The brain gets facts of instances from a monitor, the monitor gets failures from calls that come
    over a bus, and these calls need the brain.
    """

    decides: "Brain"  # from when it is built on; nobody asks before
    engine: HttpEngine

    def feed(self, event: Event) -> None:
        self.engine.hear(event)
        self.decides.feed(event)

    def balancer(self) -> Balancer:
        return self.decides.balancer


class _Parts(msgspec.Struct):
    """Parts that a process that serves shares with one that only decides."""

    engine: HttpEngine
    monitor: Monitor
    fleet: Fleet
    telemetry: Telemetry
    prompts: PromptTokens
    orchestrator: Orchestrator | None  # None: another process follows the workflows
    tracing: Tracing | None
    brain: "Brain"
    background: list[Coroutine[None, None, None]]


@contextlib.asynccontextmanager
async def running(
    settings: Settings, observers: tuple[Observer, ...] = ()
) -> AsyncIterator[Service]:
    """Serve until the block ends; then finish running calls for at most `GRACE_S` (`http.py`).

    Raises:
        SetupError: a port is taken, the log cannot be written, or the bus or a file is of no use.
    """
    tls = ServiceTls(settings)
    access = access_of(settings)
    with (
        listening_socket(settings.host, settings.port) as sock,
        listening_socket(settings.admin_host, settings.admin_port) as admin_sock,
        open_audit_log(settings.audit_log) as audit,
    ):
        async with (
            open_flows(settings) as kept_flows,
            _put_together(settings, observers) as parts,
            contextlib.AsyncExitStack() as stack,
        ):
            brain, monitor, telemetry = parts.brain, parts.monitor, parts.telemetry
            bodies = Bodies(settings.max_body_bytes, settings.max_held_bytes, settings.caller_share)
            on_error = count_errors(telemetry.count_error, audit)
            gateway = Gateway(
                settings,
                brain,
                parts.engine,
                access,
                parts.prompts,
                bodies,
                served_models=monitor.models,
                caches_prefixes=monitor.caches_prefixes,
                on_trouble=monitor.probe_after_failure,
                on_error=on_error,
                tracing=parts.tracing,
            )
            insight = partial(brain.add_insight, access=access)
            ui = OperatorsPage(brain, parts.fleet, telemetry, parts.orchestrator, settings)
            batches = await stack.enter_async_context(
                serving_batches(settings.batches, access, gateway)
            )
            flows = flows_online(kept_flows, access, gateway)
            probes = Probes(lambda: bool(monitor.models()), telemetry.families)
            rooms = insight, batches.add_to, flows
            own = gateway.own_models
            models = Models(
                access, monitor.model_cards, None if own is None else own.names, on_error
            )
            app = clients_front(brain, (probes, models), access, rooms, on_error)
            limits = limits_of(settings, telemetry.count_error)
            pages = pages_of(settings, access, on_error)
            servers = {
                sock: HttpServer(app, gateway, limits, tls.callers, pages),
                admin_sock: HttpServer(
                    operators_front(
                        brain,
                        monitor,
                        parts.fleet,
                        telemetry.families_for_operators,
                        access,
                        names=settings.admin_names,
                        audit=audit,
                        add_pages=ui.add_to,
                    ),
                    tls=tls.operators,
                ),
            }
            changes = gateway_changes(parts.fleet, access, bodies, settings) | tls.changes()
            changes |= entitlement_changes(brain, access, gateway)
            if isinstance(brain, LocalControl):  # a pool's processes must change it together
                changes |= policy_changes(brain, ui.gains)
            reload = Reload(settings, changes, audit)
            ui.acts.reload = reload.again
            urls = (url_of(each, has_tls=tls.is_on) for each in (sock, admin_sock))
            background = [*access.background(), *flush_tasks(audit), *ui.background()]
            background += batches.background()
            background += stack.enter_context(batch_figures(settings.batches, telemetry.show))
            background += stack.enter_context(invocation_figures(settings.flows, telemetry))
            async with serving_ports(servers, [*parts.background, *background]):
                yield Service(brain, parts, reload, *urls)


@contextlib.asynccontextmanager
async def balancing(settings: Settings) -> AsyncIterator[Service]:
    """Decide for a pool, or stand by, without serving clients over HTTP.

    Raises:
        SetupError: the port is taken, the log cannot be written, or the bus or a file is of no use.
    """
    tls, access = ServiceTls(settings), access_of(settings)
    with (
        listening_socket(settings.host, settings.port) as sock,
        open_audit_log(settings.audit_log) as audit,
    ):
        async with _put_together(settings, ()) as parts:
            ui = OperatorsPage(
                parts.brain,
                parts.fleet,
                parts.telemetry,
                parts.orchestrator,
                settings,
                changes_engines=False,
            )
            app = operators_front(
                parts.brain,
                parts.monitor,
                parts.fleet,
                parts.telemetry.families_for_operators,
                access,
                has_changes=False,
                names=(*settings.admin_names, settings.host),
                audit=audit,
                add_pages=ui.add_to if may_have_page(settings) else None,
            )
            changes = balancer_changes(parts.fleet, access) | entitlement_changes(
                parts.brain, access
            )
            reload = Reload(settings, changes | tls.changes(), audit)
            ui.acts.reload = reload.again
            url = url_of(sock, has_tls=tls.is_on)
            beside = [*access.background(), *flush_tasks(audit), *ui.background()]
            async with serving_ports(
                {sock: HttpServer(app, tls=tls.operators)}, parts.background + beside
            ):
                yield Service(parts.brain, parts, reload, url, url)


@contextlib.asynccontextmanager
async def _put_together(
    settings: Settings, observers: tuple[Observer, ...]
) -> AsyncIterator[_Parts]:
    cluster = cluster_of(settings, os.environ)
    orchestrator = (
        Orchestrator(idle_us=settings.workflow_idle_s * SECOND) if cluster is None else None
    )
    brain: Brain
    port, contexts = BrainPort(), EngineContexts()
    monitor = Monitor(port.feed, contexts=contexts)
    telemetry = Telemetry(port.balancer, orchestrator, WallClock().now)
    with (
        contextlib.closing(Tokenizers(settings.tokenizer)) as tokenizers,
        open_log(settings.log_dir) as log,
    ):
        prompts = PromptTokens(tokenizers)
        async with (
            open_tracing(
                settings.telemetry,
                settings.pool if cluster is not None and not settings.is_over_pools else None,
            ) as tracing,
            EngineClient(
                stall_s=settings.stall_s,
                answer_s=settings.answer_s,
                longest_answer_s=settings.longest_answer_s,
                pass_headers=settings.pass_headers,
                contexts=contexts,
            ) as client,
        ):
            watching: tuple[Observer, ...] = (
                telemetry,
                *([log] if log is not None else []),
                *tracing_observers(tracing, settings.workflow_idle_s * SECOND, telemetry.show),
                *observers,
            )
            engine = HttpEngine(client)
            port.engine = engine
            pools = settings.pools if settings.is_over_pools else (settings.pool,)
            cells = Cells(pools, WallClock().now)
            fleet = Fleet(
                *(monitor, client.upstreams, engine.calls.running, port.balancer), cells.follow
            )
            fleet.follow(settings.own_engines)
            beside = [monitor.run(), fleet.run(), engine.stall_watch.run(), *flush_tasks(log)]
            of_all = engine, monitor, fleet, telemetry, prompts, orchestrator, tracing
            parts = partial(_Parts, *of_all)
            if orchestrator is not None:
                note_start(log, WallClock().now())
                brain = LocalControl(
                    settings, engine.calls, new_balancer(settings), Learner(orchestrator), watching
                )
                port.decides = brain
                background = [*brain.background(), tell_progress(engine.calls, brain.feed), *beside]
                yield parts(brain=brain, background=background)
            elif cluster is not None:
                from kairos.cluster import pool_control

                new = partial(new_balancer, settings)
                joined = pool_control(
                    settings, cluster, cells, engine, monitor, telemetry, prompts, new, watching
                )
                async with joined as brain:
                    port.decides = brain
                    background = [*brain.background(), *beside]
                    yield parts(brain=brain, background=background)
