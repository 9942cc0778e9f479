"""Monitor of the instances: which are up, their models, limits and load.

An instance joins when it answers, and leaves when it does not: after a refused connection at once,
after slow answers (a busy engine is not a dead one) only after several in a row. Once a second the
status of each joined instance is fed, from its metrics. Without metrics nothing is fed: the
balancer sees how old the last status is.
"""

import asyncio
import contextlib
import errno
import logging
import os
import ssl
from collections.abc import Callable

from kairos.core import Instance, InstanceJoined, InstanceLeft, InstanceStatus, UpstreamUnreachable
from kairos.engines.engine_probe import EngineProbe, NotReady, Target
from kairos.engines.kinds import ModelCard, merged
from kairos.proxy import (
    ConnectionBroke,
    EngineContexts,
    EngineRefused,
    Fetcher,
    TlsFilesOfNoUse,
    why_not,
)

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
_APART = 0.618  # of an interval, one instance's looks from the next one's: spread over all of it
TIMEOUT_S = 5.0
SLOW_PROBES_ALLOWED = 3
NOT_PROBED = "not probed yet"  # the problem of an instance that has not answered, nor failed to


class _Watch:
    """Periodic probes of one instance."""

    def __init__(self, target: Target) -> None:
        self.probe = EngineProbe(target)
        self.look = asyncio.Event()  # now, not at the next turn
        self.troubled = False  # a call failed there since it was looked at
        self.task: asyncio.Task[None] | None = None  # None: the monitor does not run


class Monitor:
    """Monitor that feeds joins, leaves and statuses of instances; `run` it until cancelled."""

    def __init__(
        self,
        feed: Callable[[InstanceJoined | InstanceLeft | InstanceStatus], None],
        contexts: EngineContexts | None = None,
    ) -> None:
        """Create the monitor. `contexts` are TLS contexts shared with the engine client."""
        self._feed = feed
        self._watches: dict[str, _Watch] = {}
        self._contexts = contexts or EngineContexts()
        self._joined: dict[str, Instance] = {}
        self._start: Callable[[str], None] | None = None  # None: it does not run
        self._started = 0  # watches
        self.problems: dict[str, str] = {}
        """The reason why each missing instance is not in use, by id."""
        self._looked = asyncio.Event()  # at one of them, since somebody waited for that
        self.all_joined = asyncio.Event()
        """Set once all instances have been in use at the same time."""

    def models(self) -> list[str]:
        """Return all models that are served at the moment."""
        return sorted({model for instance in self._joined.values() for model in instance.models})

    def caches_prefixes(self) -> bool:
        """Return whether an engine may have a prefix cache."""
        joined = self._joined.values()
        return not joined or any(instance.prefix_caching for instance in joined)

    async def model_cards(self) -> dict[str, ModelCard]:
        """Return the cards of all models that are served at the moment.

        At the start, wait until one instance has joined or all were probed, up to the time limit of
        a probe, so that a client in the first second does not get an empty list.
        """
        if not self._joined and NOT_PROBED in self.problems.values():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    while not self._joined and NOT_PROBED in self.problems.values():
                        self._looked.clear()
                        await self._looked.wait()
        cards = []
        for instance_id, instance in self._joined.items():
            watch = self._watches.get(instance_id)
            known = {} if watch is None else watch.probe.cards
            cards.append({name: known.get(name, ModelCard()) for name in instance.models})
        return merged(cards)

    def watch(self, target: Target) -> None:
        """Watch the instance.

        If it is watched already, restart; its last state holds until it answers.
        """
        instance_id = target.upstream.id
        self._stop_probes(instance_id)
        self._watches[instance_id] = _Watch(target)
        if instance_id not in self._joined:
            self.problems[instance_id] = NOT_PROBED
        if self._start is not None:
            self._start(instance_id)

    def expect(self, instance: Instance) -> bool:
        """Take an instance as present until it fails to answer.

        Return False if it is not watched.
        """
        if instance.id not in self._watches:
            return False
        self._joined[instance.id] = instance
        self.problems.pop(instance.id, None)
        return True

    def stop_watching(self, instance_id: str) -> None:
        """Stop watching the instance, and report that it has left."""
        self._stop_probes(instance_id)
        self.problems.pop(instance_id, None)
        if self._joined.pop(instance_id, None) is not None:
            self._feed(InstanceLeft(instance_id, drained=True))

    async def run(self) -> None:
        fetching = Fetcher(self._contexts, TIMEOUT_S)
        async with fetching as fetcher, asyncio.TaskGroup() as tasks:

            def start(instance_id: str) -> None:
                watch = self._watches[instance_id]
                self._started += 1
                first_s = INTERVAL_S * (1 - self._started * _APART % 1)
                watching = self._watch(fetcher, instance_id, watch, first_s)
                watch.task = tasks.create_task(watching)

            for instance_id in self._watches:
                start(instance_id)
            self._start = start
            try:
                await asyncio.Event().wait()  # there may be none, and more may come
            finally:
                self._start = None

    def probe_after_failure(self, trouble: UpstreamUnreachable) -> None:
        """Probe an instance at once, after a call failed there.

        If connections were refused, the instance has left: otherwise, being idle, it would get the
        next calls. Failures on an unwatched instance are ignored.
        """
        watch = self._watches.get(trouble.instance_id)
        if watch is None:
            return
        if trouble.refused:
            self._report_left(trouble.instance_id, str(trouble))
        watch.probe.forget_limits()
        watch.troubled = True
        watch.look.set()

    def _stop_probes(self, instance_id: str) -> None:
        watch = self._watches.pop(instance_id, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    async def _watch(
        self, fetcher: Fetcher, instance_id: str, watch: _Watch, interval_s: float
    ) -> None:
        """Probe an instance forever. `interval_s` is the time to the second probe."""
        probe, look = watch.probe, watch.look
        slow_probes = 0
        while True:
            look.clear()  # trouble met from now on is not known to this look
            due_at, interval_s = asyncio.get_running_loop().time() + interval_s, INTERVAL_S
            try:
                seen = await probe.probe(fetcher)
            except TimeoutError:
                slow_probes += 1
                if slow_probes > SLOW_PROBES_ALLOWED:
                    self._report_left(instance_id, f"no answer within {TIMEOUT_S:g} s")
            except (NotReady, ConnectionBroke, TlsFilesOfNoUse) as error:
                self._report_left(instance_id, str(error) or type(error).__name__)
            except OSError as error:
                self._report_left(instance_id, _cause(error))
            else:
                slow_probes = 0
                self._is_there(seen.instance)
                if seen.status is not None:
                    self._feed(seen.status)
                elif watch.troubled:  # it says nothing of itself, but it is there
                    self._feed(InstanceStatus(instance_id))
                watch.troubled = False
            self._looked.set()
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation that comes with `look`.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await look.wait()

    def _is_there(self, instance: Instance) -> None:
        self.problems.pop(instance.id, None)
        if self._joined.get(instance.id) != instance:
            logger.info(
                "instance %s serves %s: at most %d calls at once, %s KV tokens%s",
                instance.id,
                ", ".join(instance.models),
                instance.max_num_seqs,
                instance.kv_tokens or "an unknown number of",
                ", by priority" if instance.priority else "",
            )
            self._joined[instance.id] = instance
            self._feed(InstanceJoined(instance))
        if not self.problems:
            self.all_joined.set()

    def _report_left(self, instance_id: str, problem: str) -> None:
        if self.problems.get(instance_id) != problem:
            logger.warning("instance %s is not in use: %s", instance_id, problem)
        self.problems[instance_id] = problem
        self._watches[instance_id].probe.forget_limits()
        if self._joined.pop(instance_id, None) is not None:
            self._feed(InstanceLeft(instance_id))


def _cause(error: OSError) -> str:
    """Return the reason in the system's words; asyncio's texts repeat the address."""
    if isinstance(error, ssl.SSLError):
        return why_not(error)
    if isinstance(error, EngineRefused):
        return f"nothing answers there ({os.strerror(errno.ECONNREFUSED)})"
    said = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
    return f"nothing answers there ({said})"
