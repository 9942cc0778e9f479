"""A pool in virtual time, whose callers are a bench's own; as `simulate/world.py` has it."""

from collections.abc import Mapping

from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Balancer,
    Dispatch,
    EngineProfile,
    Entitlements,
    Instance,
    InstanceJoined,
    Learner,
    Orchestrator,
    Progressed,
    Refuse,
    Runtime,
    TenantWeight,
    Tick,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.sequence import CallProgress
from kairos.simulate.engines import SimulatedEngines


class VirtualPool:
    """Callers are made by those who inherit of it."""

    def __init__(
        self, weights: Mapping[str, TenantWeight] | None, instances: int, engine: EngineProfile
    ) -> None:
        self.engine = engine
        self.clock, self.learner = VirtualClock(), Learner(Orchestrator())
        self.balancer = Balancer(
            POLICIES["kairos"],
            PLACEMENTS["kairos"],
            max_waiting=10**6,
            entitlements=Entitlements(weights),
        )
        observers = (self.learner.orchestrator.observe,)
        self.runtime = Runtime(self.balancer, self, self.clock, observers)
        self.fleet = SimulatedEngines(self.clock, self.seen)
        for number in range(instances):
            self._join(f"i{number}")

    def dispatch(self, command: Dispatch) -> None:
        raise NotImplementedError

    def refuse(self, command: Refuse) -> None:
        raise NotImplementedError

    def seen(self, progress: CallProgress) -> None:
        """An engine's call got on."""
        raise NotImplementedError

    def run(self, until: int) -> None:
        """`until`: µs."""
        self._until = until
        self.clock.call_at(SECOND, self._each_second)
        self.clock.run()

    def _join(self, instance_id: str) -> None:
        engine = self.engine
        self.fleet.start(instance_id, engine)
        instance = Instance(
            id=instance_id,
            models=("m",),
            max_num_seqs=engine.max_num_seqs,
            kv_tokens=engine.kv_tokens,
            block_size=engine.block_size,
            max_num_batched_tokens=engine.max_num_batched_tokens,
        )
        self.runtime.feed(InstanceJoined(instance))

    def _each_second(self) -> None:
        now, feed = self.clock.now(), self.runtime.feed
        if now >= self._until:
            self.clock.stop()
            return
        if progress := self.fleet.progress():
            feed(Progressed(progress))
        for status in self.fleet.statuses():
            feed(status)
        if (learnt := self.learner.step()) is not None:
            feed(learnt)
        tick_at = self.balancer.tick_at
        if tick_at is not None and tick_at <= now:
            feed(Tick())
        self.clock.call_at(now + SECOND, self._each_second)
