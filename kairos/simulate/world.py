"""A pool in virtual time: the real balancer, learner and policies, with models of engines.

Nothing here is random: a run's result follows from its inputs alone.

As in the live service (`cluster/local/local_control.py`), learnt profiles are published once a
second, and calls that have waited too long are refused as often. Differences to it:

- Learning takes no time. Nor do the gateway, the network and the decisions: see `call_us` of
  `core/engine_profile.py`.
- Prompts have their true lengths. Live, they are estimated from a body's bytes until the call ends.
- The failure of an instance is known at once, before its calls fail. Live, their failures are
  reported first, and waiting calls may be sent there, and fail too, until one is refused.
- Users report the end of a workflow at once. Live, without a report it stays open for 600 s more.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal

import msgspec

from kairos.core import (
    MAX_WAITING,
    REFUSALS,
    SECOND,
    Balancer,
    Dispatch,
    EngineProfile,
    Failed,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InvalidRequest,
    KairosError,
    Learner,
    Ledger,
    MakeGuard,
    Observer,
    Orchestrator,
    PatienceGuard,
    Phase,
    Placement,
    Policy,
    Progressed,
    Record,
    Refuse,
    RunMetrics,
    Runtime,
    Tick,
    UpstreamUnreachable,
    WorkEstimates,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.engine.sequence import CallProgress
from kairos.simulate.engines import SimulatedEngines
from kairos.simulate.kv_links import KvLinks
from kairos.simulate.users import MODEL, Clients, Feed, Users
from kairos.simulate.workload.workflows import Submission


class WorldEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an instance.

    join: it takes requests from now on, with an empty cache, unless it had only left. leave: it
    takes no more; its running calls finish. fail: its running calls fail, too. slow: steps take
    `factor` times as long from now on; 1 is the profile's speed.
    """

    at_us: int
    what: Literal["join", "leave", "fail", "slow"]
    instance_id: str
    factor: float = 1.0


_PROFILED_SEQS, _PROFILED_KV_TOKENS = 16, 16_000
NO_PHASES: Mapping[str, Phase] = MappingProxyType({})
NO_TIERS: Mapping[str, HostTier] = MappingProxyType({})
NO_MODELS: Mapping[str, str] = MappingProxyType({})


def token_us(profile: EngineProfile) -> float:
    """Return the time per output token, as profiling reports it once.

    It is for 16 sequences that decode together, with 1,000 tokens of context each.
    """
    step = profile.step
    decoding_us = max(step.weights_us, step.decode_seq_us * _PROFILED_SEQS)
    return step.fixed_us + decoding_us + step.kv_token_us * _PROFILED_KV_TOKENS


class World:
    """A simulated pool and its workflows. `run` it once."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        instances: Mapping[str, EngineProfile],
        policy: Callable[[WorkEstimates], Policy],
        placement: Callable[[Ledger], Placement],
        *,
        happenings: Sequence[WorldEvent] = (),
        observers: tuple[Observer, ...] = (),
        guard: MakeGuard = PatienceGuard,
        max_waiting: int = MAX_WAITING,
        tell_lengths: bool = False,
        anonymous: float = 0.0,
        on_second: Callable[["World"], None] = lambda _: None,
        clients: Callable[[VirtualClock, Feed], Clients] | None = None,
        phases: Mapping[str, Phase] = NO_PHASES,
        links: KvLinks | None = None,
        tiers: Mapping[str, HostTier] = NO_TIERS,
        absent: Collection[str] = (),
        models: Mapping[str, str] = NO_MODELS,
    ) -> None:
        """Create the pool.

        `instances` are all that ever exist, by id; an instance whose first event is `join` is
        absent at the start. `tell_lengths`, `anonymous`: see `Users`; `guard`: see the queue, in
        which at most `max_waiting` calls wait. Metrics use the true workflows, even if calls are
        anonymous. `on_second` is called in each second of virtual time. `clients` replace the users
        that request `submissions`. `phases`: of instances that serve only one; `links`: for caches
        of their calls, and for `tiers`, the memory of their hosts. `absent`: instances that are
        missing until `join` is called. `models`: of each instance, if calls ask for their own
        `model`.
        """
        self.metrics = RunMetrics()
        self.clock = VirtualClock()
        self.learner = Learner(Orchestrator())
        self.balancer = Balancer(policy, placement, guard=guard, max_waiting=max_waiting)
        learn = self.learner.orchestrator.observe
        watching: tuple[Observer, ...] = (self._measure, *observers, learn)
        self._runtime = Runtime(self.balancer, self, self.clock, watching)
        users = Users(
            self.clock,
            self._runtime.feed,
            tell_lengths=tell_lengths,
            anonymous=anonymous,
            by_model=bool(models),
        )
        self.users = users if clients is None else clients(self.clock, self._runtime.feed)
        self.fleet = SimulatedEngines(self.clock, self._seen, links)
        self._instances, self._on_second, self._phases = dict(instances), on_second, phases
        self._tiers, self._models = tiers, models
        in_time = sorted(happenings, key=lambda each: each.at_us)
        first = {each.instance_id: each.what for each in reversed(in_time)}
        for instance_id in instances:
            if first.get(instance_id) != "join" and instance_id not in absent:
                self.join(instance_id)
        for each in in_time:
            self.clock.call_at(each.at_us, partial(self._happen, each))
        for submission in submissions:
            users.expect(submission)
        self.clock.call_at(SECOND, self._each_second)

    def run(self) -> None:
        """Run to the end of the last workflow, or until the clock is stopped."""
        if self.users.left:
            self.clock.run()

    def add(self, instance_id: str, profile: EngineProfile) -> None:
        """Add an instance with a new id, which takes requests from now on."""
        assert instance_id not in self._instances
        self._instances[instance_id] = profile
        self.join(instance_id)

    def _measure(self, record: Record) -> None:
        self.metrics(self.users.identified(record))

    def dispatch(self, command: Dispatch) -> None:
        """The balancer's command, as `Runtime` hands it over."""
        call = self.users.engine_call(command.request_id, command.priority or 0)
        try:
            if command.prefill_id is None:
                self.fleet.add(command.instance_id, call)
            else:
                self.fleet.add_pair(command.prefill_id, command.instance_id, call)
        except KairosError as error:
            refused = InvalidRequest(str(error))  # what vLLM answers, with status 400
            self.clock.call_at(self.clock.now(), partial(self._failed, call.id, refused))

    def refuse(self, command: Refuse) -> None:
        error = REFUSALS[command.reason].error(command)
        self.users.fail_call(command.request_id, error)

    def _seen(self, progress: CallProgress) -> None:
        request_id = progress.call_id
        if progress.what == "first_token":
            self._runtime.feed(FirstToken(request_id))
            return
        prompt_tokens, completion_tokens = self.users.lengths(request_id)
        finished = Finished(
            request_id,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=progress.cached_tokens,
            preemptions=progress.preemptions,
            recomputed_tokens=progress.recomputed_tokens,
        )
        self._runtime.feed(finished)
        self.users.finish_call(request_id, progress.cached_tokens)

    def _failed(self, request_id: str, error: KairosError, generated: int = 0) -> None:
        self._runtime.feed(Failed(request_id, error.code, generated))
        self.users.fail_call(request_id, error)

    def _happen(self, happening: WorldEvent) -> None:
        instance_id = happening.instance_id
        match happening.what:
            case "join":
                self.join(instance_id)
            case "leave":
                self.leave(instance_id)
            case "fail":
                self._runtime.feed(InstanceLeft(instance_id))
                error = UpstreamUnreachable(instance_id, "it failed", refused=False)
                for request_id, generated in self.fleet.crash(instance_id).items():
                    self._failed(request_id, error, generated)
            case "slow":
                self.fleet.slow_down(instance_id, happening.factor)

    def leave(self, instance_id: str) -> None:
        """Stop new calls to the instance; its running calls finish."""
        self._runtime.feed(InstanceLeft(instance_id))

    def join(self, instance_id: str, models: tuple[str, ...] = ()) -> None:
        """Let the instance take requests for these models, by default for its only one."""
        profile = self._instances[instance_id]
        self.fleet.start(instance_id, profile, self._tiers.get(instance_id))
        instance = Instance(
            id=instance_id,
            models=models or (self._models.get(instance_id, MODEL),),
            max_num_seqs=profile.max_num_seqs,
            kv_tokens=profile.kv_tokens,
            block_size=profile.block_size,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            prefix_caching=profile.prefix_caching,
            priority=profile.scheduling == "priority",
            token_us=token_us(profile),
            phase=self._phases.get(instance_id, "both"),
        )
        self._runtime.feed(InstanceJoined(instance))

    def _each_second(self) -> None:
        now = self.clock.now()
        if progress := self.fleet.progress():
            self._runtime.feed(Progressed(progress))
        for status in self.fleet.statuses():
            self._runtime.feed(status)
        self.learner.orchestrator.expire(now)
        learnt = self.learner.step()
        if learnt is not None:
            self._runtime.feed(learnt)
        tick_at = self.balancer.tick_at
        if tick_at is not None and tick_at <= now:
            self._runtime.feed(Tick())
        self.clock.call_at(now + SECOND, self._each_second)
        self._on_second(self)
