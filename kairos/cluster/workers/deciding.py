"""Assembly of the decider process: like `service.py`, without the calls themselves."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import msgspec

from kairos.batches import batch_figures
from kairos.cluster.local.local_control import LocalControl, entitlements_of, new_balancer
from kairos.cluster.local.reload import policy_changes
from kairos.cluster.workers.decider import Decider
from kairos.cluster.workers.journal import Journal
from kairos.cluster.workers.messages import Engines, Setup
from kairos.cluster.workers.working import Change
from kairos.core import (
    SECOND,
    Balancer,
    Dispatch,
    InstanceLeft,
    Learner,
    Observer,
    Orchestrator,
    Refuse,
    Tick,
)
from kairos.engines import Fleet, Monitor
from kairos.gateway import (
    Access,
    HttpServer,
    LateApp,
    Models,
    NamesOf,
    OperatorsPage,
    PortFront,
    Probes,
    ServiceTls,
    access_of,
    operators_front,
    serving_ports,
)
from kairos.host import WallClock
from kairos.observe import (
    AuditLog,
    Telemetry,
    count_errors,
    flush_tasks,
    note_start,
    open_audit_log,
    open_log,
    open_tracing,
    tracing_observers,
)
from kairos.request import ASGIApp
from kairos.settings import EngineSettings, Settings, classes_by_name
from kairos.workflows import flow_names, invocation_figures

logger = logging.getLogger(__name__)


class Elsewhere:
    """An engine that does nothing: the decider sends commands to workers, as an observer."""

    def dispatch(self, command: Dispatch) -> None:
        pass

    def refuse(self, command: Refuse) -> None:
        pass


@contextlib.asynccontextmanager
async def deciding(setup: Setup) -> AsyncIterator[Change]:
    """Decide until the block ends. Yield the function that applies changed settings.

    Raises:
        SetupError: The log or the file of learnt profiles cannot be used.
    """
    assert setup.journal is not None
    settings, clock = _with_learnt_file(setup), WallClock()
    idle_us, tls = settings.workflow_idle_s * SECOND, ServiceTls(settings)
    decider = Decider(Journal(setup.journal), clock)
    decided, engines = decider.recall(), decider.engines
    orchestrator = Orchestrator(idle_us=idle_us)
    balancer = new_balancer(settings)
    telemetry = Telemetry(lambda: balancer, orchestrator, clock.now)
    async with contextlib.AsyncExitStack() as stack:
        log = stack.enter_context(open_log(settings.log_dir))
        traces = open_tracing(settings.telemetry, setup.directory)
        tracing = await stack.enter_async_context(traces)
        watching: tuple[Observer, ...] = (decider, telemetry, *([log] if log is not None else []))
        watching += tracing_observers(tracing, idle_us, telemetry.show)
        alone = LocalControl(
            settings, Elsewhere(), balancer, Learner(orchestrator), watching, decided
        )
        known = tuple(request.id for request, _ in balancer.in_flight())
        note_start(log, clock.now(), known, tuple(balancer.ledger.instances))
        monitor = Monitor(alone.feed)
        decider.begin(alone.feed, monitor.probe_after_failure, telemetry.count_errors)
        fleet = _fleet(settings, decider, monitor, balancer, engines)
        if decided:
            _go_on(alone, decider, monitor, telemetry)
            alone.entitle(entitlements_of(settings))  # the journal may end with others
            alone.order_by(settings.policy)
        access = access_of(settings)
        sockets = {
            name: stack.enter_context(socket.socket(fileno=file))
            for name, file in setup.sockets.items()
        }
        audit = stack.enter_context(open_audit_log(settings.audit_log))
        ui = OperatorsPage(alone, fleet, telemetry, orchestrator, settings)
        operators = operators_front(
            alone,
            monitor,
            fleet,
            telemetry.families_for_operators,
            access,
            names=settings.admin_names,
            audit=audit,
            add_pages=ui.add_to,
        )
        names = stack.enter_context(flow_names(settings.flows))
        servers = {
            sockets["asked"]: HttpServer(_asked(alone, access, monitor, telemetry, audit, names)),
            sockets["operators"]: HttpServer(operators, tls=tls.operators),
        }
        order = policy_changes(alone, ui.gains)["policy"]

        def change(to: Settings) -> None:
            access.change_keys(to.key, needed=to.asks_for_keys)
            access.know_classes(classes_by_name(to.service_class))
            alone.entitle(entitlements_of(to))
            order(to)
            tls.change_files(to)
            fleet.follow(to.engine)

        loop = asyncio.get_running_loop()
        background = [*alone.background(), monitor.run(), fleet.run(), *flush_tasks(log)]
        background += [*access.background(), *flush_tasks(audit), *ui.background()]
        background += [decider.watch()]
        background += stack.enter_context(batch_figures(settings.batches, telemetry.show))
        background += stack.enter_context(invocation_figures(settings.flows, telemetry))
        async with serving_ports(servers, background):
            facts = await loop.create_unix_server(decider.link, sock=sockets["facts"])
            yield change
            facts.close()


def _fleet(
    settings: Settings, decider: Decider, monitor: Monitor, balancer: Balancer, known: Engines
) -> Fleet:
    """Create the fleet: engines of the settings, and engines that an earlier decider knew."""

    def tell(all_of_them: tuple[EngineSettings, ...], draining: tuple[str, ...]) -> None:
        decider.use(Engines(all_of_them, draining))

    fleet = Fleet(monitor, {}, decider.calls.running, lambda: balancer, tell)
    fleet.follow(settings.engine)
    if known.all:
        fleet.restore(known.all, known.draining)
    return fleet


def _with_learnt_file(setup: Setup) -> Settings:
    """Return the settings with a file for learnt profiles, so that they outlive a decider.

    Without one in the settings it is a temporary file, deleted when all of Kairos stops.
    """
    if setup.settings.learnt_file is not None:
        return setup.settings
    return msgspec.structs.replace(setup.settings, learnt_path=str(setup.path("learnt.json")))


def _go_on(alone: LocalControl, decider: Decider, monitor: Monitor, telemetry: Telemetry) -> None:
    """Continue from the replayed state.

    Open calls are counted in metrics when they end. Instances keep their last state until they
    have been probed.
    """
    for decision in decider.calls.course():
        telemetry(decision.record)
    for instance in list(alone.balancer.ledger.instances.values()):
        if not monitor.expect(instance):
            alone.feed(InstanceLeft(instance.id, drained=True))
    alone.feed(Tick())
    logger.info("the decider has restarted: %d calls wait", alone.balancer.waiting)


def _asked(
    alone: LocalControl,
    access: Access,
    monitor: Monitor,
    telemetry: Telemetry,
    audit: AuditLog | None,
    flows: NamesOf | None,
) -> ASGIApp:
    """Return the app that answers what workers relay: see `relay.py`."""
    probes = Probes(lambda: bool(monitor.models()), telemetry.families)
    on_error = count_errors(telemetry.count_error, audit)
    models = Models(access, monitor.model_cards, flows, on_error)

    def build() -> ASGIApp:
        from fastapi import FastAPI

        from kairos.gateway import answer_errors_as_openai_does

        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        alone.add_insight(app, access)
        answer_errors_as_openai_does(app, on_error)
        return app

    return PortFront((probes, models), LateApp(build))
