"""The simulated engines that serve, one wake-up each on the virtual clock."""

from collections.abc import Callable
from functools import partial

from kairos.engine_profile import EngineProfile
from kairos.events import InstanceStatus
from kairos.sim.clock import VirtualClock
from kairos.sim.engine.engine import ModelledEngine
from kairos.sim.engine.engine_calls import CallProgress, EngineCall


class _Running:
    """An engine, the calls in it, and when it is looked at next."""

    def __init__(self, profile: EngineProfile) -> None:
        self.engine = ModelledEngine(profile)
        self.calls: dict[str, None] = {}  # in the order in which they came
        self.wakes_at: int | None = None


class SimulatedEngines:
    """Engines by the ids of their instances.

    What a client sees of a call is told to `on_progress` at its instant; what several engines do at
    the same µs, in the order in which they were started.
    """

    def __init__(self, clock: VirtualClock, on_progress: Callable[[CallProgress], None]) -> None:
        self._clock, self._on_progress = clock, on_progress
        self._running: dict[str, _Running] = {}
        self.engines: list[ModelledEngine] = []  # all that ever ran

    def start(self, instance_id: str, profile: EngineProfile) -> None:
        """Start an engine, empty; one that runs stays as it is."""
        if instance_id not in self._running:
            self._running[instance_id] = _Running(profile)
            self.engines.append(self._running[instance_id].engine)

    def crash(self, instance_id: str) -> dict[str, int]:
        """The engine is gone, with all that it held; what can be seen at this instant still is.
        Returns the calls in it, by id, and how many tokens of its answer each had."""
        running = self._running.pop(instance_id, None)
        if running is None:
            return {}
        now = self._clock.now()
        self._advance(running, now)
        generated = running.engine.generated(now)
        return {call_id: generated.get(call_id, 0) for call_id in running.calls}

    def calls(self, instance_id: str) -> int:
        """That are in it; 0 where none runs."""
        running = self._running.get(instance_id)
        return 0 if running is None else len(running.calls)

    def slow_down(self, instance_id: str, factor: float) -> None:
        running = self._running.get(instance_id)
        if running is not None:
            running.engine.slow_down(factor, self._clock.now())
            self._set_wake_up(running)

    def add(self, instance_id: str, call: EngineCall) -> None:
        """Raises KairosError: the engine refuses the call."""
        running = self._running[instance_id]
        running.engine.add(call, self._clock.now())
        running.calls[call.id] = None
        self._set_wake_up(running)

    def abort(self, instance_id: str, call_id: str) -> None:
        """Nobody waits for the call any more, which is in the engine."""
        running = self._running[instance_id]
        running.engine.abort(call_id, self._clock.now())
        del running.calls[call_id]
        self._set_wake_up(running)

    def progress(self) -> dict[str, int]:
        """How many tokens of its answer each call has had that has had any."""
        now = self._clock.now()
        generated: dict[str, int] = {}
        for running in self._running.values():
            generated |= running.engine.generated(now)
        return generated

    def statuses(self) -> list[InstanceStatus]:
        """What each engine says of itself."""
        return [
            _status(instance_id, running.engine) for instance_id, running in self._running.items()
        ]

    def _set_wake_up(self, running: _Running) -> None:
        """A wake-up that was set for another instant finds that it is not wanted any more."""
        at = running.engine.next_at()
        if at != running.wakes_at:
            running.wakes_at = at
            if at is not None:
                self._clock.call_at(at, partial(self._wake, at))

    def _wake(self, at: int) -> None:
        for running in list(self._running.values()):
            if running.wakes_at == at:
                self._advance(running, at)

    def _advance(self, running: _Running, at: int) -> None:
        running.wakes_at = None
        for seen in running.engine.advance(at):
            assert seen.at == at, f"seen at {seen.at}, told at {at}"
            if seen.what == "finished":
                del running.calls[seen.call_id]
            self._on_progress(seen)
        self._set_wake_up(running)


def _status(instance_id: str, engine: ModelledEngine) -> InstanceStatus:
    profile, stats = engine.profile, engine.stats
    has_sequences = engine.running < profile.max_num_seqs
    return InstanceStatus(
        instance_id,
        kv_used=engine.used_blocks * profile.block_size / profile.kv_tokens,
        running=engine.running,
        waiting=engine.waiting,
        waiting_for_room=engine.waiting if has_sequences else 0,
        preemptions=stats.preemptions,
        queried_tokens=stats.queried_tokens,
        cached_tokens=stats.cached_tokens,
    )
