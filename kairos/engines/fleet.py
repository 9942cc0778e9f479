"""The instances that this process uses, from its settings or added at runtime.

A removed instance drains. For the balancer it has left, so it gets no more calls, and waiting ones
go elsewhere; its running calls finish, and then it is gone. Reloaded settings override changes to
the instances they name: these are used as described. Instances that the settings named before and
no longer name are drained; others stay.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from kairos.core import Balancer, InvalidRequest, Phase
from kairos.engines.engine_probe import Target
from kairos.engines.kinds import VLLM
from kairos.engines.monitor import Monitor
from kairos.proxy import Upstream
from kairos.settings import MAX_ENGINES, EngineSettings, TlsFiles

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks whether what drains has come to its end


class InstanceExists(InvalidRequest):
    """An instance with that address already exists."""

    status = 409
    code = "instance_exists"
    retries = False

    def __init__(self, instance_id: str) -> None:
        super().__init__(f"the instance {instance_id} already exists; remove it to change it")


class TooManyInstances(InvalidRequest):
    """The maximum number of instances is reached."""

    status = 409
    code = "too_many_instances"
    retries = False
    says = f"there are {MAX_ENGINES} instances, which is the limit"


class InstanceNotFound(InvalidRequest):
    """No instance has this id."""

    status = 404
    code = "instance_not_found"

    def __init__(self, instance_id: str) -> None:
        super().__init__(f"there is no instance '{instance_id[:200]}' here")


class KeyNotNamed(InvalidRequest):
    """An added engine's key must be one that the settings name.

    Otherwise everyone who reaches the operators' routes could have any secret of the environment
    sent to their own URL.
    """

    code = "key_not_named"

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"api_key_env: no engine of the settings names the variable '{variable[:200]}'; only "
            "the settings can bring in another key"
        )


class TlsFilesNotNamed(InvalidRequest):
    """An added engine's TLS files must be ones that the settings name.

    Otherwise an operator could choose the certificate that is shown to their own URL, and the
    trusted authorities.
    """

    code = "tls_files_not_named"
    says = (
        "ca, client_certificate, client_key: no engine of the settings names these files; only "
        "the settings can bring in others"
    )


class InstanceView(msgspec.Struct, frozen=True):
    """An instance as operators see it."""

    id: str
    url: str
    state: Literal["in_use", "not_in_use", "draining"]
    problem: str | None  # why it is not in use
    running: int  # calls in flight there, as far as this process knows of them
    named: bool  # by the settings
    phase: Phase = "both"  # prefill: it computes prompts for others, and takes no calls itself


class Fleet:
    """Owner of the set of instances; the monitor reports the state of each."""

    def __init__(
        self,
        monitor: Monitor,
        upstreams: dict[str, Upstream],
        running: Callable[[str], int],
        balancer: Callable[[], Balancer],
        on_change: Callable[[tuple[EngineSettings, ...], tuple[str, ...]], None] = lambda *_: None,
    ) -> None:
        """Create the fleet.

        `upstreams` has the addresses for calls, by id, and is updated here. `running` returns the
        number of this process's calls on an instance. `balancer` returns the one that decides now,
        as far as it is in this process. `on_change` receives all instances, and the draining ones,
        before any call is sent there.
        """
        self._on_change = on_change
        self._monitor = monitor
        self._upstreams, self._calls_running = upstreams, running
        self._balancer = balancer
        self._engines: dict[str, EngineSettings] = {}
        self._named: dict[str, EngineSettings] = {}  # by the settings, when read last
        self._draining: set[str] = set()

    def follow(self, named: Sequence[EngineSettings]) -> None:
        """Use the instances that the settings name from now on."""
        before, self._named = self._named, {each.id: each for each in named}
        for instance_id in before.keys() - self._named.keys():
            if instance_id in self._engines:
                self.drain(instance_id)
        for each in named:
            if self._engines.get(each.id) != each or each.id in self._draining:
                self._use(each)

    def add(self, engine: EngineSettings) -> InstanceView:
        """Add an instance. A draining one is used again, as described now.

        Raises InstanceExists, TooManyInstances, KeyNotNamed, TlsFilesNotNamed: Nothing has changed.
        """
        if engine.id in self._engines and engine.id not in self._draining:
            raise InstanceExists(engine.id)
        if engine.id not in self._engines and len(self._engines) >= MAX_ENGINES:
            raise TooManyInstances
        named = self._named.values()
        keys = {each.api_key_env for each in named}
        if engine.api_key_env is not None and engine.api_key_env not in keys:
            raise KeyNotNamed(engine.api_key_env)
        if engine.tls != TlsFiles() and all(engine.tls != each.tls for each in named):
            raise TlsFilesNotNamed
        logger.info("instance %s was added", engine.id)
        self._use(engine)
        return self._view(engine.id)

    def drain(self, instance_id: str) -> InstanceView:
        """Drain an instance: it gets no more calls, and is removed after its last one.

        Raises InstanceNotFound: It does not exist.
        """
        if instance_id not in self._engines:
            raise InstanceNotFound(instance_id)
        self._draining.add(instance_id)
        self._changed()
        self._monitor.stop_watching(instance_id)
        view = self._view(instance_id)
        logger.info("instance %s takes no more calls; %d run there", instance_id, view.running)
        return view

    def restore(self, engines: Iterable[EngineSettings], draining: Iterable[str]) -> None:
        """Restore the instances of an earlier process: with added ones, without removed ones."""
        engines = tuple(engines)
        for instance_id in self._named.keys() - {each.id for each in engines}:
            self.drain(instance_id)
        for each in engines:
            if each.id not in self._named and each.id not in self._engines:
                self._use(each)
        for instance_id in draining:
            if instance_id in self._engines:
                self.drain(instance_id)

    def views(self) -> list[InstanceView]:
        return [self._view(instance_id) for instance_id in self._engines]

    def draining(self) -> dict[str, int]:
        """Return the number of running calls of each draining instance, by id."""
        return {each: self._running(each) for each in sorted(self._draining)}

    async def run(self) -> None:
        """Remove drained instances, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for instance_id, running in self.draining().items():
                if not running:
                    logger.info("instance %s is gone", instance_id)
                    self._draining.remove(instance_id)
                    del self._engines[instance_id]
                    del self._upstreams[instance_id]
                    self._changed()

    def _use(self, engine: EngineSettings) -> None:
        """Use the instance with these settings. Its running calls continue."""
        target = Target(upstream_of(engine), engine)
        self._engines[engine.id] = engine
        self._draining.discard(engine.id)
        self._upstreams[engine.id] = target.upstream
        self._changed()
        self._monitor.watch(target)

    def _changed(self) -> None:
        self._on_change(tuple(self._engines.values()), tuple(sorted(self._draining)))

    def _running(self, instance_id: str) -> int:
        """Return the number of calls on the instance.

        On standby the ledger is empty, but calls may run through this process.
        """
        booked = self._balancer().ledger.running(instance_id)
        return booked or self._calls_running(instance_id)

    def _view(self, instance_id: str) -> InstanceView:
        problem = self._monitor.problems.get(instance_id)
        state: Literal["in_use", "not_in_use"] = "in_use" if problem is None else "not_in_use"
        return InstanceView(
            instance_id,
            self._engines[instance_id].url,
            "draining" if instance_id in self._draining else state,
            problem,
            self._running(instance_id),
            instance_id in self._named,
            self._engines[instance_id].phase,
        )


def upstream_of(engine: EngineSettings) -> Upstream:
    key = os.environ[engine.api_key_env] if engine.api_key_env else None
    base_url = engine.url.rstrip("/").removesuffix("/v1")
    # The settings' `priority` is vLLM's: of the others none takes it from a header.
    return Upstream(engine.id, base_url, key, priority_header=VLLM.priority_header, tls=engine.tls)
