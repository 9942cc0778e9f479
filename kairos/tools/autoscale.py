"""Keeps a pool as large as its work needs: looks, decides, says why, and, where it is told to,
starts and drains engines.

An engine that is started is added to the pool once it answers. One that is not needed drains first,
and is stopped when nothing runs on it. Whoever interrupts leaves the pool as it is.
"""

from collections.abc import Callable

from kairos.errors import SetupError
from kairos.planner.autoscaling import Autoscaler, Decision
from kairos.tls_settings import TlsFiles
from kairos.tools import health
from kairos.tools.operated_pool import OperatedPool, SeenInstance
from kairos.tools.scaling_file import ScaledEngines, ScalingFile

_PROBE_S = 2.0


class PoolScaler:
    """`step` every few seconds."""

    def __init__(
        self,
        pool: OperatedPool,
        file: ScalingFile,
        engines: ScaledEngines | None,
        say: Callable[[str], None],
    ) -> None:
        """`engines`: None: nothing is started or drained, only said."""
        self._pool, self._file, self._engines, self._say = pool, file, engines, say
        self._scaler = Autoscaler(file.pool)
        self._own: list[str] = []  # engines that can be stopped, as they were started
        self._starting: dict[str, float] = {}  # since when
        self._draining: set[str] = set()
        self._adopted = False
        self._not_before_s = 0.0  # no engine is started: one has failed

    def step(self, now_s: float) -> Decision | None:
        """`now_s`: of a clock that never goes back. None: the pool could not be seen, which is
        said."""
        try:
            work, seen = self._pool.work(), self._pool.instances()
            self._look_after(seen, now_s)
        except SetupError as error:
            self._say(f"{error}; nothing is changed")
            return None
        serving = sum(each.state == "in_use" for each in seen.values())
        starting = [url for url in self._starting if not _is_used(seen.get(url))]
        decision = self._scaler.decide(work.look, serving, len(starting))
        self._say(
            f"{serving} serve, {len(starting)} start, {len(self._draining)} drain, "
            f"{work.waiting} calls wait: {_told(decision)}"
        )
        if self._engines is not None:
            self._carry_out(decision, self._engines, seen, now_s)
        return decision

    def _look_after(self, seen: dict[str, SeenInstance], now_s: float) -> None:
        """Engines that come, and those that have drained."""
        engines = self._engines
        if engines is None:
            return
        if not self._adopted:
            self._own, self._adopted = engines.adopted(seen), True
        for url in list(self._starting):
            self._look_at_starting(engines, url, seen.get(url), now_s)
        for url in sorted(self._draining - seen.keys()):
            engines.stop(url)
            self._draining.discard(url)
            self._own.remove(url)
            self._say(f"{url} has drained, and is stopped")

    def _look_at_starting(
        self, engines: ScaledEngines, url: str, seen: SeenInstance | None, now_s: float
    ) -> None:
        since_s = now_s - self._starting[url]
        if _is_used(seen):
            del self._starting[url]
            self._say(f"{url} serves, {since_s:.0f} s after it was started")
        elif (why := engines.failed(url)) is not None or since_s > self._file.ready_s:
            self._give_up(engines, url, seen)
            self._not_before_s = now_s + self._file.pool.calm_s
            why = why or f"it did not serve in {self._file.ready_s:.0f} s"
            self._say(f"{url}: {why}; the next is started in {self._file.pool.calm_s:.0f} s")
        elif seen is None and _answers(url):
            self._pool.add(url, self._file.engine)

    def _give_up(self, engines: ScaledEngines, url: str, seen: SeenInstance | None) -> None:
        del self._starting[url]
        if seen is not None:
            self._pool.drain(seen.id)
            self._draining.add(url)
        else:
            engines.stop(url)
            self._own.remove(url)

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
                self._drain(engines, seen)
        except SetupError as error:
            self._say(str(error))

    def _start(self, engines: ScaledEngines, seen: dict[str, SeenInstance], now_s: float) -> None:
        if self._draining:
            url = min(self._draining, key=self._own.index)
            self._pool.add(url, self._file.engine)
            self._draining.discard(url)
            self._starting[url] = now_s  # it is not used at once
            self._say(f"{url} was draining, and is used again")
        elif now_s < self._not_before_s:
            self._say(f"none is started for {self._not_before_s - now_s:.0f} s: one has failed")
        else:
            url = engines.start([*seen, *self._own])
            self._own.append(url)
            self._starting[url] = now_s
            self._say(f"{url} is started")

    def _drain(self, engines: ScaledEngines, seen: dict[str, SeenInstance]) -> None:
        """The last that was started."""
        able = [url for url in self._own if url not in self._draining]
        if not able:
            self._say("none of those that serve was started here, so none is drained")
            return
        url = able[-1]
        if url in self._starting:
            self._give_up(engines, url, seen.get(url))
            self._say(f"{url} is given up before it served")
        elif url in seen:
            self._pool.drain(seen[url].id)
            self._draining.add(url)
            self._say(f"{url} drains")


def _is_used(seen: SeenInstance | None) -> bool:
    return seen is not None and seen.state == "in_use"


def _answers(url: str) -> bool:
    try:
        health.check(url, TlsFiles(), _PROBE_S)
    except SetupError:
        return False
    return True


def _told(decision: Decision) -> str:
    count = abs(decision.change)
    what = "keep them" if not count else f"{'start' if decision.change > 0 else 'drain'} {count}"
    return f"{what} ({decision.needed:.2f} needed): {decision.why}"
