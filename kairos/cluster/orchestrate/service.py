"""Assembly of an orchestrator, which runs in the caller's event loop."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator

from fastapi import FastAPI
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kairos import __version__
from kairos.cluster.kafka.cluster import cluster_of
from kairos.cluster.kafka.kafka_bus import KafkaBus
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.topic_setup import ensure_topics
from kairos.cluster.local.reload import Reload, of_keys
from kairos.cluster.orchestrate.follower import Ends, Follower
from kairos.core import SECOND, SetupError, Topic
from kairos.gateway import (
    Access,
    HttpServer,
    PortFront,
    Probes,
    ServiceTls,
    access_of,
    add_follower_pages,
    add_insight,
    answer_errors_as_openai_does,
    listening_socket,
    may_have_page,
    name_answers,
    pages_of,
    serving_ports,
    url_of,
)
from kairos.observe import (
    AuditLog,
    bus_figures,
    count_errors,
    counter,
    flush_tasks,
    gauge,
    learning_metrics,
    open_audit_log,
)
from kairos.settings import Settings

TOPICS = (Topic.EVENTS, Topic.PROFILES, Topic.REQUESTS, Topic.RESULTS, Topic.DEAD_LETTERS)


class Orchestration:
    def __init__(self, follower: Follower, reload: Reload, url: str) -> None:
        self.follower, self.reload = follower, reload
        self.url = url


@contextlib.asynccontextmanager
async def following_workflows(settings: Settings) -> AsyncIterator[Orchestration]:
    """Follow workflows, or stand by, until the block ends.

    Raises:
        SetupError: The port is taken, or the bus cannot be used.
    """
    cluster = cluster_of(settings, os.environ)
    if cluster is None:
        raise SetupError("name the bus: kairos orchestrate --bus kafka://HOST:PORT")
    access = access_of(settings)
    tls = ServiceTls(settings)
    with (
        listening_socket(settings.host, settings.port) as sock,
        open_audit_log(settings.audit_log) as audit,
    ):
        await ensure_topics(cluster, TOPICS)
        async with KafkaBus(cluster) as bus, Producer(cluster) as producer:
            ends = Ends(bus, settings.pools or (settings.pool,))
            idle_us = settings.workflow_idle_s * SECOND
            follower = Follower(cluster, producer, ends, idle_us=idle_us)
            app = _app(follower, access, audit)
            # Also on standby: it can take over.
            figures = OrchestratorMetrics(follower, ends)
            probes = Probes(lambda: not follower.is_rebuilding, figures.collect)
            front = name_answers(PortFront((probes,), app))
            server = HttpServer(front, tls=tls.callers, pages=pages_of(settings, access))
            beside = [follower.run(), ends.run(), *access.background(), *flush_tasks(audit)]
            if may_have_page(settings):
                names = (*settings.admin_names, settings.host)
                beside.append(add_follower_pages(app, follower, access, names, audit).run())
            reload = Reload(settings, of_keys(access) | tls.changes(), audit)
            async with serving_ports({sock: server}, beside):
                yield Orchestration(follower, reload, url_of(sock, has_tls=tls.is_on))


class OrchestratorMetrics(Collector):
    def __init__(self, follower: Follower, ends: Ends) -> None:
        self._follower = follower
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        follower, following = self._follower, self._follower.following
        yield from bus_figures()
        yield gauge(
            "kairos_orchestrator_active",
            "1 if this process follows workflows, 0 on standby",
            int(following is not None),
        )
        yield gauge(
            "kairos_orchestrator_behind_seconds",
            "Age of the newest event read, while more are waiting",
            follower.behind_us / SECOND,
        )
        yield counter(
            "kairos_orchestrator_published", "Published profile updates", follower.published
        )
        yield counter("kairos_orchestrator_ends", "Published ends of workflows", self._ends.told)
        if following is None:
            return
        yield counter("kairos_orchestrator_records", "Events read and observed", following.records)
        yield from learning_metrics(following.orchestrator)
        if (tau := following.estimates.kendall_tau) is not None:
            yield gauge(
                "kairos_rank_kendall_tau",
                "Agreement of agents' ranks with the order of their mean remaining work",
                tau,
            )


def _app(follower: Follower, access: Access, audit: AuditLog | None) -> FastAPI:
    app = FastAPI(
        title="Kairos's orchestrator",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_insight(app, access, follower)
    answer_errors_as_openai_does(app, count_errors(lambda _: None, audit))
    return app
