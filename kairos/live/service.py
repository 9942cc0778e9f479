"""Puts a live Kairos together and runs it inside the caller's event loop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from pathlib import Path

import msgspec

from kairos.balancer import Balancer
from kairos.config import MAX_NUM_SEQS, EngineSettings, Settings
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import SetupError
from kairos.learner import Learner
from kairos.live.access import Access
from kairos.live.admin import build_admin
from kairos.live.alone import Alone
from kairos.live.bodies import Bodies
from kairos.live.clock import WallClock
from kairos.live.engine import HttpEngine, Upstream
from kairos.live.factlog import FactLog
from kairos.live.gateway import Gateway, build_app
from kairos.live.http import listen, server_of, serving, url_of
from kairos.live.identity.aliases import Aliases
from kairos.live.identity.inference import Inference
from kairos.live.inquiry import Target
from kairos.live.kafka.connection import connection
from kairos.live.monitor import Monitor
from kairos.live.pool.pooled import Pooled, pooled
from kairos.live.telemetry import Telemetry
from kairos.live.tokenizer import Tokenizers
from kairos.live.tokens import PromptTokens
from kairos.model import SECOND
from kairos.orchestrator.orchestrator import Orchestrator
from kairos.runtime import Observer
from kairos.scheduler.policies import POLICIES

FLUSH_S = 1.0

Brain = Alone | Pooled


class Service:
    """A running Kairos: where it listens, what decides in it, and what it sees of its engines."""

    def __init__(self, brain: Brain, monitor: Monitor, url: str, admin_url: str) -> None:
        self.brain = brain
        self.monitor = monitor
        self.url = url
        self.admin_url = admin_url


class _Parts(msgspec.Struct):
    """What a process that serves, and one that only decides, have in common."""

    engine: HttpEngine
    brain: Brain
    monitor: Monitor
    telemetry: Telemetry
    prompts: PromptTokens
    background: list[Coroutine[None, None, None]]


@contextlib.asynccontextmanager
async def running(
    settings: Settings, observers: tuple[Observer, ...] = ()
) -> AsyncIterator[Service]:
    """Serve until the block ends; then finish running calls for at most `GRACE_S` (`http.py`).

    Raises:
        SetupError: a port is taken, the log cannot be written, or the bus is of no use.
    """
    access = Access(settings.key)
    with (
        listen(settings.host, settings.port) as sock,
        listen(settings.admin_host, settings.admin_port) as admin_sock,
    ):
        async with _put_together(settings, observers) as parts:
            brain, monitor, telemetry = parts.brain, parts.monitor, parts.telemetry
            gateway = Gateway(
                brain,
                parts.engine,
                access,
                parts.prompts,
                Aliases(settings.identity),
                Inference() if settings.infer else None,
                served_models=monitor.models,
                on_trouble=monitor.hear_of,
                on_error=telemetry.count_error,
                bodies=Bodies(settings.max_body_bytes, settings.max_held_bytes),
            )
            insight = partial(brain.add_insight, access=access)
            servers = {
                sock: server_of(build_app(gateway, access, telemetry.render, insight)),
                admin_sock: server_of(build_admin(brain, monitor)),
            }
            async with serving(servers, parts.background):
                yield Service(brain, monitor, url_of(sock), url_of(admin_sock))


@contextlib.asynccontextmanager
async def balancing(settings: Settings) -> AsyncIterator[Service]:
    """Decide for a pool, or stand by, without serving clients over HTTP.

    Raises:
        SetupError: the port is taken, the log cannot be written, or the bus is of no use.
    """
    with listen(settings.host, settings.port) as sock:
        async with _put_together(settings, ()) as parts:
            app = build_admin(parts.brain, parts.monitor, parts.telemetry.render)
            async with serving({sock: server_of(app)}, parts.background):
                yield Service(parts.brain, parts.monitor, url_of(sock), url_of(sock))


@contextlib.asynccontextmanager
async def _put_together(
    settings: Settings, observers: tuple[Observer, ...]
) -> AsyncIterator[_Parts]:
    def new_balancer() -> Balancer:
        return Balancer(
            POLICIES[settings.policy],
            PLACEMENTS[settings.placement],
            max_waiting=settings.max_waiting,
            max_wait_us=settings.max_wait_s * SECOND,
            idle_us=settings.workflow_idle_s * SECOND,
        )

    brain: Brain
    bus = connection(settings, os.environ)
    orchestrator = Orchestrator(idle_us=settings.workflow_idle_s * SECOND) if bus is None else None
    targets = [_target(each) for each in settings.engine]
    monitor = Monitor(lambda event: brain.feed(event), targets)  # noqa: PLW0108 - not there yet
    telemetry = Telemetry(lambda: brain.balancer, orchestrator, WallClock().now)
    with (
        contextlib.closing(Tokenizers(settings.tokenizer)) as tokenizers,
        _open_log(settings.log_dir) as log,
    ):
        prompts = PromptTokens(tokenizers)
        watching: tuple[Observer, ...] = (
            telemetry,
            *([log] if log is not None else []),
            *observers,
        )
        async with HttpEngine([target.upstream for target in targets]) as engine:
            if orchestrator is not None:
                brain = Alone(settings, engine, new_balancer(), Learner(orchestrator), watching)
                background = [*brain.background(), monitor.run(), *_flushing(log)]
                yield _Parts(engine, brain, monitor, telemetry, prompts, background)
            elif bus is not None:
                joined = pooled(
                    settings, bus, engine, monitor, telemetry, prompts, new_balancer, watching
                )
                async with joined as brain:
                    background = [*brain.background(), monitor.run(), *_flushing(log)]
                    yield _Parts(engine, brain, monitor, telemetry, prompts, background)


def _flushing(log: FactLog | None) -> list[Coroutine[None, None, None]]:
    return [] if log is None else [_flush(log)]


async def _flush(log: FactLog) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        log.flush()


def _target(engine: EngineSettings) -> Target:
    key = os.environ[engine.api_key_env] if engine.api_key_env else None
    base_url = engine.url.rstrip("/").removesuffix("/v1")
    upstream = Upstream(engine.id, base_url, key)
    return Target(
        upstream,
        max_num_seqs=engine.max_num_seqs or MAX_NUM_SEQS,
        kv_tokens=engine.kv_tokens,
        priority=engine.priority,
        token_us=engine.token_us,
    )


@contextlib.contextmanager
def _open_log(directory: str | None) -> Iterator[FactLog | None]:
    if directory is None:
        yield None
        return
    try:
        log = FactLog(Path(directory))
    except OSError as error:
        raise SetupError(f"the log directory {directory} is no use: {error.strerror}") from None
    with contextlib.closing(log):
        yield log
