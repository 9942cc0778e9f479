"""The simulated engines that serve, one wake-up each on the virtual clock.

A call may be a pair's: one engine computes its prompt, the other fetches the cache and generates
the answer, with the transfer between them. Where the first one fails, or what it kept is lost, the
second computes the prompt itself; so nothing is lost but time.
"""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from kairos.core import EngineProfile, InstanceStatus
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.engine.sequence import CallProgress, EngineCall
from kairos.simulate.kv_links import KvLinks


class _Running:
    """An engine, the calls in it, and when it is looked at next."""

    def __init__(self, instance_id: str, profile: EngineProfile, tier: HostTier | None) -> None:
        self.id = instance_id
        self.engine = ModelledEngine(profile, tier)
        self.calls: dict[str, None] = {}  # in the order in which they came
        self.wakes_at: int | None = None


class _Pair:
    """A call, and the engines that have its halves."""

    def __init__(self, call: EngineCall, prefill: _Running, decode: _Running) -> None:
        self.call, self.prefill, self.decode = call, prefill, decode
        self.cached_tokens = 0  # as the first found them
        self.is_prefilled = False


class SimulatedEngines:
    """Modelled engines by the ids of their instances.

    `on_progress` receives what a client sees of a call, at its instant; simultaneous events of
    several engines in the order in which they were started.
    """

    def __init__(
        self,
        clock: VirtualClock,
        on_progress: Callable[[CallProgress], None],
        links: KvLinks | None = None,
    ) -> None:
        """Create it. `links` transfer caches; None: there are neither pairs nor lower tiers."""
        self._clock, self._on_progress, self._links = clock, on_progress, links
        self._pairs: dict[str, _Pair] = {}  # by call id, those that have not ended
        self._running: dict[str, _Running] = {}
        self.engines: list[ModelledEngine] = []  # all that ever ran

    def start(self, instance_id: str, profile: EngineProfile, tier: HostTier | None = None) -> None:
        """Start an empty engine, unless it runs already.

        `tier` is in its host's memory, and needs links.
        """
        assert tier is None or self._links is not None
        if instance_id not in self._running:
            self._running[instance_id] = _Running(instance_id, profile, tier)
            self.engines.append(self._running[instance_id].engine)

    def crash(self, instance_id: str) -> dict[str, int]:
        """Remove an engine and its state; events visible at this instant are still seen.

        Return the calls in it, by id, with the number of tokens of each answer.
        """
        running = self._running.pop(instance_id, None)
        if running is None:
            return {}
        now = self._clock.now()
        self._advance(running, now)
        generated = running.engine.generated(now)
        lost = {call_id: generated.get(call_id, 0) for call_id in running.calls}
        return self._lost_with(running, lost) if self._pairs else lost

    def stop_if_empty(self, instance_id: str) -> bool:
        """Stop the engine if it is empty and expects no calls. Return whether it is gone."""
        running = self._running.get(instance_id)
        if running is not None and (running.calls or self._awaits(running)):
            return False
        self._running.pop(instance_id, None)
        return True

    def _awaits(self, running: _Running) -> bool:
        return any(each.decode is running for each in self._pairs.values())

    def slow_down(self, instance_id: str, factor: float) -> None:
        running = self._running.get(instance_id)
        if running is not None:
            running.engine.slow_down(factor, self._clock.now())
            self._set_wake_up(running)

    def add(self, instance_id: str, call: EngineCall) -> None:
        """Add a call. Raises KairosError: The engine refuses it."""
        running = self._running[instance_id]
        running.engine.add(call, self._clock.now())
        running.calls[call.id] = None
        self._set_wake_up(running)

    def add_pair(self, prefill_id: str, decode_id: str, call: EngineCall) -> None:
        """Add a call whose prompt is for one engine, and whose answer is for another.

        Raises:
            KairosError: One of the engines refuses it.
        """
        prefill, decode = self._running[prefill_id], self._running[decode_id]
        decode.engine.check(call)
        self.add(prefill_id, replace(call, completion_tokens=1, keeps_cache=True))
        self._pairs[call.id] = _Pair(call, prefill, decode)

    def abort(self, instance_id: str, call_id: str) -> None:
        """Abort a call in the engine; for a pair, either of its engines."""
        running = self._running[instance_id]
        if (pair := self._pairs.pop(call_id, None)) is not None:
            running = pair.decode if pair.is_prefilled else pair.prefill
            self._release(pair)
        running.engine.abort(call_id, self._clock.now())
        del running.calls[call_id]
        self._set_wake_up(running)

    def progress(self) -> dict[str, int]:
        """Return the number of tokens of each answer that has begun."""
        now = self._clock.now()
        generated: dict[str, int] = {}
        for running in self._running.values():
            generated |= running.engine.generated(now)
        return generated

    def statuses(self) -> list[InstanceStatus]:
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
            if seen.what == "loading":
                self._load(running, seen)
            elif (pair := self._pairs.get(seen.call_id)) is None:
                self._on_progress(seen)
            else:
                self._seen_of_pair(running, pair, seen)
        self._set_wake_up(running)

    # Pairs, and caches under way

    def _seen_of_pair(self, running: _Running, pair: _Pair, seen: CallProgress) -> None:
        if running is pair.decode:
            if seen.what == "finished":
                del self._pairs[seen.call_id]
            self._on_progress(seen._replace(cached_tokens=pair.cached_tokens))
        elif seen.what == "finished":
            pair.is_prefilled, pair.cached_tokens = True, seen.cached_tokens
            self.add(pair.decode.id, replace(pair.call, fetches_cache=True))

    def _load(self, running: _Running, seen: CallProgress) -> None:
        assert self._links is not None
        now, tokens = self._clock.now(), seen.loads_tokens
        pair = self._pairs.get(seen.call_id) if seen.loads_from == "instance" else None
        if pair is None:
            ends_at = self._links.from_host(running.id, tokens, now)
        elif self._is_here(pair.prefill):
            ends_at = self._links.between(pair.prefill.id, running.id, tokens, now)
        else:
            ends_at = now
        self._clock.call_at(ends_at, partial(self._loaded, running, seen.call_id, pair))

    def _loaded(self, running: _Running, call_id: str, pair: _Pair | None) -> None:
        if self._is_here(running):
            came = pair is None or self._is_here(pair.prefill)
            running.engine.fetched(call_id, self._clock.now(), came=came)
            self._set_wake_up(running)
        if pair is not None:
            self._release(pair)

    def _release(self, pair: _Pair) -> None:
        if self._is_here(pair.prefill):
            pair.prefill.engine.release_cache(pair.call.id, self._clock.now())
            self._set_wake_up(pair.prefill)

    def _is_here(self, running: _Running) -> bool:
        """Return whether this engine still runs: it did not crash, and was not replaced."""
        return self._running.get(running.id) is running

    def _lost_with(self, crashed: _Running, lost: dict[str, int]) -> dict[str, int]:
        """Return the calls lost with an engine, including pairs' calls that were to come to it."""
        for call_id, pair in list(self._pairs.items()):
            if pair.decode is crashed:
                del self._pairs[call_id]
                lost.setdefault(call_id, 0)
                self._release(pair)
                if not pair.is_prefilled and self._is_here(pair.prefill):
                    pair.prefill.engine.abort(call_id, self._clock.now())
                    del pair.prefill.calls[call_id]
                    self._set_wake_up(pair.prefill)
            elif pair.prefill is crashed and not pair.is_prefilled:
                del self._pairs[call_id], lost[call_id]
                self.add(pair.decode.id, pair.call)
        return lost


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
