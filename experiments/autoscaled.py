"""A simulated pool whose instances are started and drained while it runs, as somebody decides.

An instance costs from when it is started, though it serves only `start_s` later, until the last
call on it has ended after it was drained. The last started instances are drained first: they have
the fewest prompts in a cache.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from kairos.core import SECOND, EngineProfile, Look, look_at_pool
from kairos.simulate import World


class PoolSize(msgspec.Struct, frozen=True):
    """The pool at an instant."""

    at_s: float
    serving: int
    starting: int
    draining: int


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the autoscaler sees."""

    look: Look
    waiting: int  # calls in the queue
    serving: int
    starting: int


Decide = Callable[[PoolSeen], int]  # instances to start; below 0: to drain


class AutoscaledPool:
    """`each_second` is for `World`. The first instances serve from the start."""

    def __init__(
        self,
        profile: EngineProfile,
        decide: Decide,
        *,
        instances: int,
        start_s: float,
        every_s: int,
    ) -> None:
        """`every_s`: it is decided so often."""
        self._profile, self._decide = profile, decide
        self._start_us, self._every_s = round(start_s * SECOND), every_s
        self.first = {_name(number): profile for number in range(instances)}
        self._started = instances  # ever
        self._serving = list(self.first)
        self._starting: list[str] = []
        self._draining: list[str] = []
        self.sizes: list[PoolSize] = []
        self.instance_s = 0.0

    def each_second(self, world: World) -> None:
        self._draining = [each for each in self._draining if not world.fleet.stop_if_empty(each)]
        size = PoolSize(
            world.clock.now() / SECOND,
            len(self._serving),
            len(self._starting),
            len(self._draining),
        )
        self.instance_s += size.serving + size.starting + size.draining
        if world.clock.now() // SECOND % self._every_s:
            return
        self.sizes.append(size)
        asked = PoolSeen(
            look=look_at_pool(world.balancer, world.clock.now()),
            waiting=world.balancer.waiting,
            serving=size.serving,
            starting=size.starting,
        )
        change = self._decide(asked)
        for _ in range(change):
            self._start(world)
        for _ in range(-change):
            self._drain(world)

    def _start(self, world: World) -> None:
        name = _name(self._started)
        self._started += 1
        self._starting.append(name)
        world.clock.call_at(world.clock.now() + self._start_us, partial(self._ready, world, name))

    def _ready(self, world: World, name: str) -> None:
        if name in self._starting:
            self._starting.remove(name)
            self._serving.append(name)
            world.add(name, self._profile)

    def _drain(self, world: World) -> None:
        """Drain instances. A starting one is dropped; the last serving one stays."""
        if self._starting:
            self._starting.pop()
        elif len(self._serving) > 1:
            name = self._serving.pop()
            world.leave(name)
            self._draining.append(name)


def _name(number: int) -> str:
    return f"instance-{number}"
