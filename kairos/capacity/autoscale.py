"""Autoscaler loop: observe the pool, decide, log the reason, and start or drain engines.

A started engine is added to the pool once it answers. An engine to be removed drains first, and is
stopped when it has no calls. If it cannot be stopped, that is retried, and finally left to the
operator, while the pool is scaled as usual. An interrupted autoscaler leaves the pool as it is. It
sees and changes the pool by the operators' port of the Kairos that runs it (`OperatedPool`).

Of prefill-decode pairs the instances that decode are scaled: they have the calls. Instances that
only compute prompts are not counted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from kairos.capacity.autoscaling import Autoscaler, Decision
from kairos.capacity.scaled_engines import ScaledEngines, ScalingFile, engines_of, read_scaling_file
from kairos.core import Look, Phase, SetupError
from kairos.host import JsonServer, path_segment
from kairos.settings import TlsFiles

_PROBE_S = 2.0


# What it reads has types of its own: the gateway's would import all of a gateway into a command
# that runs for weeks, 0.25 s of CPU time and 22 MB.


class SeenInstance(msgspec.Struct, frozen=True):
    """Engine of the pool."""

    id: str
    url: str
    state: Literal["in_use", "not_in_use", "draining"]
    running: int
    named: bool  # by the settings
    phase: Phase = "both"
    problem: str | None = None


class SeenWork(msgspec.Struct, frozen=True):
    """Current work of the pool."""

    decides: bool
    waiting: int
    look: Look


class _Instances(msgspec.Struct, frozen=True):
    instances: list[SeenInstance]


class OperatedPool:
    """Process of a pool that decides."""

    def __init__(self, url: str, key: str | None, files: TlsFiles) -> None:
        """Set up the client. Raises SetupError: the URL or a file cannot be used."""
        self._server, self._key = JsonServer(url, files), key

    def read_work(self) -> SeenWork:
        """Return the current work.

        Raises SetupError: it cannot be read, or another process decides.
        """
        seen = self._server.read("/admin/work", SeenWork, self._key)
        if not seen.decides:
            raise SetupError(
                f"{self._server.url} does not decide at present: ask the process of the pool that "
                "does (its /admin/status says so)"
            )
        return seen

    def read_instances(self) -> dict[str, SeenInstance]:
        """Return the instances by URL, without a trailing slash.

        Raises SetupError: they cannot be read.
        """
        found = self._server.read("/admin/instances", _Instances, self._key).instances
        return {each.url.rstrip("/").removesuffix("/v1"): each for each in found}

    def add_engine(self, url: str, engine: dict[str, Any]) -> None:
        """Add an engine. `engine`: its settings other than the URL. Raises SetupError."""
        self._server.ask(
            "POST", "/admin/instances", body={**engine, "url": url}, token=self._key, good=(201,)
        )

    def drain_engine(self, instance_id: str) -> None:
        """Drain an instance. Raises SetupError."""
        path = f"/admin/instances/{path_segment(instance_id)}"
        self._server.ask("DELETE", path, token=self._key, good=(202,))


class PoolScaler:
    """Scaler of one pool. Call `step` every `every_s` seconds."""

    def __init__(
        self,
        pool: OperatedPool,
        file: ScalingFile,
        engines: ScaledEngines | None,
        say: Callable[[str], None],
    ) -> None:
        """Prepare to scale. `engines`: None: only log decisions, start and drain nothing."""
        self.every_s = file.every_s
        self._pool, self._file, self._engines, self._say = pool, file, engines, say
        self._scaler = Autoscaler(file.pool)
        self._own: list[str] = []  # engines that can be stopped, as they were started
        self._starting: dict[str, float] = {}  # since when, in s
        self._draining: set[str] = set()
        self._stopping: dict[str, float] = {}  # when each was last seen in the pool
        self._left: set[str] = set()  # engines that could not be stopped
        self._adopted = False
        self._not_before_s = 0.0  # no engine is started before: one has failed

    def check_pool(self) -> None:
        """Raise SetupError: the pool cannot be read, which `step` only logs."""
        self._pool.read_work()

    def step(self, now_s: float) -> Decision | None:
        """Observe the pool and act. `now_s`: of a monotonic clock.

        Returns None if the pool could not be read, which is logged.
        """
        try:
            work, seen = self._pool.read_work(), self._pool.read_instances()
            self._follow_engines(seen, now_s)
        except SetupError as error:
            self._say(f"{error}; nothing is changed")
            return None
        serving = sum(_is_used(each) and _is_scaled(each) for each in seen.values())
        starting = [url for url in self._starting if not _is_used(seen.get(url))]
        decision = self._scaler.decide(work.look, serving, len(starting))
        self._say(
            f"{serving} serve, {len(starting)} start, {len(self._draining)} drain, "
            f"{work.waiting} calls wait: {_sentence(decision)}"
        )
        if self._engines is not None:
            self._carry_out(decision, self._engines, seen, now_s)
        return decision

    def _follow_engines(self, seen: dict[str, SeenInstance], now_s: float) -> None:
        """Follow engines that are starting, draining or stopping."""
        engines = self._engines
        if engines is None:
            return
        if not self._adopted:
            self._own, self._adopted = engines.stoppable(seen), True
        for url in list(self._starting):
            self._follow_starting(engines, url, seen.get(url), now_s)
        for url in sorted(self._draining - seen.keys()):
            self._draining.discard(url)
            self._stopping[url] = now_s
        for url in sorted(self._stopping):
            if url in seen:
                self._stopping[url] = now_s
            else:
                self._stop(engines, url, now_s)

    def _stop(self, engines: ScaledEngines, url: str, now_s: float) -> None:
        since_s = now_s - self._stopping[url]
        try:
            engines.stop(url)
        except SetupError as error:
            if since_s < self._file.stop_s:
                self._say(f"{url} is not stopped yet; retrying: {error}")
                return
            self._left.add(url)
            self._say(f"{url} could not be stopped for {since_s:.0f} s: {error}; stop it yourself")
        else:
            self._say(f"{url} has drained, and is stopped")
        del self._stopping[url]
        self._own.remove(url)

    def _follow_starting(
        self, engines: ScaledEngines, url: str, seen: SeenInstance | None, now_s: float
    ) -> None:
        since_s = now_s - self._starting[url]
        if _is_used(seen):
            del self._starting[url]
            self._say(f"{url} serves, {since_s:.0f} s after it was started")
        elif (why := engines.why_failed(url)) is not None or since_s > self._file.ready_s:
            self._give_up(url, seen, now_s)
            self._not_before_s = now_s + self._file.pool.calm_s
            why = why or f"it did not serve in {self._file.ready_s:.0f} s"
            self._say(f"{url}: {why}; the next is started in {self._file.pool.calm_s:.0f} s")
        elif seen is None and _answers(url):
            self._pool.add_engine(url, self._file.engine)

    def _give_up(self, url: str, seen: SeenInstance | None, now_s: float) -> None:
        """Drain an engine; it is stopped once the pool has removed it."""
        if seen is not None:
            self._pool.drain_engine(seen.id)
        del self._starting[url]
        self._stopping[url] = now_s

    def _carry_out(
        self,
        decision: Decision,
        engines: ScaledEngines,
        seen: dict[str, SeenInstance],
        now_s: float,
    ) -> None:
        try:
            for _ in range(decision.change):
                self._start(engines, seen, now_s)
            for _ in range(-decision.change):
                self._drain(seen, now_s)
        except SetupError as error:
            self._say(str(error))

    def _start(self, engines: ScaledEngines, seen: dict[str, SeenInstance], now_s: float) -> None:
        if self._draining:
            url = min(self._draining, key=self._own.index)
            self._pool.add_engine(url, self._file.engine)
            self._draining.discard(url)
            self._starting[url] = now_s  # it is not used at once
            self._say(f"{url} was draining, and is used again")
        elif now_s < self._not_before_s:
            self._say(f"none is started for {self._not_before_s - now_s:.0f} s: one has failed")
        else:
            url = engines.start([*seen, *self._own, *self._left])
            self._own.append(url)
            self._starting[url] = now_s
            self._say(f"{url} is started")

    def _drain(self, seen: dict[str, SeenInstance], now_s: float) -> None:
        """Drain the engine that was started last."""
        going = self._draining | self._stopping.keys()
        able = [url for url in self._own if url not in going and _is_scaled(seen.get(url))]
        if not able:
            self._say("no engine is drained: none of the serving ones was started here")
            return
        url = able[-1]
        if url in self._starting:
            self._give_up(url, seen.get(url), now_s)
            self._say(f"{url} is stopped before it served")
        elif url in seen:
            self._pool.drain_engine(seen[url].id)
            self._draining.add(url)
            self._say(f"{url} drains")


def open_scaler(
    url: str,
    key: str | None,
    files: TlsFiles,
    settings: Path | None,
    *,
    drive: bool,
    say: Callable[[str], None],
) -> PoolScaler:
    """Return a scaler of the pool of a running Kairos.

    Args:
        url: of its operators' port.
        key: an API key; None: none is asked for.
        files: own certificate, and the authorities to trust.
        settings: file of bounds, and of how engines are started; None: the defaults.
        drive: start and drain engines, or only say what should be done.
        say: called with each line of the scaler's log.

    Raises:
        SetupError, InvalidFile: a setting or the URL is wrong; the message says what to do.
    """
    found = ScalingFile() if settings is None else read_scaling_file(settings)
    engines = engines_of(found) if drive else None
    if drive and engines is None:
        raise SetupError("--drive: the file must say how engines start: [commands] or [kubernetes]")
    return PoolScaler(OperatedPool(url, key, files), found, engines, say)


def _is_used(seen: SeenInstance | None) -> bool:
    return seen is not None and seen.state == "in_use"


def _is_scaled(seen: SeenInstance | None) -> bool:
    """Return whether an instance counts; one that is not in the pool yet will decode."""
    return seen is None or seen.phase != "prefill"


def _answers(url: str) -> bool:
    try:
        JsonServer(url, TlsFiles(), _PROBE_S).check_health()
    except SetupError:
        return False
    return True


def _sentence(decision: Decision) -> str:
    count = abs(decision.change)
    what = "keep them" if not count else f"{'start' if decision.change > 0 else 'drain'} {count}"
    return f"{what} ({decision.needed:.2f} needed): {decision.why}"
