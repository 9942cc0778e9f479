"""A flow on devices that have one model at a time, in virtual time: what `kairos run --host` does,
before models of engines.

An engine that is left is empty when its model is there again: weights sleep in the host's memory or
are read again, as `LoadTime` says; its KV memory is lost. With a `HostMemory` contexts are copied
there as they are computed. When a later call begins with one, its context is loaded, on the device
that has the model then, where that is quicker than computing it again. While a model loads, the
device does nothing. Ten times a second it is looked whether a device should switch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from experiments.kv_tiers import KvTiers, choose
from kairos.core import SECOND, EngineProfile, Ledger, Placement, Policy, WorkEstimates
from kairos.simulate import CacheLink, KvLinks, World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.simulate.users import Feed
from kairos.workflows import FlowFigures, FlowLimits, Functions, Plan
from kairos.workflows.compile.device_work import DeviceState, LoadTime, OperatorWork, load_us
from kairos.workflows.execute.facts import OperatorsOpened
from kairos.workflows.execute.model_turns import DeviceTurn, ModelTurns, SwitchModel

_LOOK_US = SECOND // 10


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory for contexts, in tokens by model, shared by all devices; `tiers.host` is the link
    of each device to it."""

    tiers: KvTiers
    tokens: int


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`turns`: of each device, what it has, one after the other.

    `profiles`: an engine of each model. `weights`: names in the place of models, with the model
    that each is: a device goes from one to another of the same model without a load. So a placement
    is compared that binds single operators to devices.
    """

    turns: Sequence[Sequence[DeviceTurn]]
    works: Sequence[OperatorWork]
    loads: Mapping[str, LoadTime]
    profiles: Mapping[str, EngineProfile]
    policy: Callable[[WorkEstimates], Policy]
    placement: Callable[[Ledger], Placement]
    weights: Mapping[str, str] = {}
    max_open_rows: int = 4_096
    memory: HostMemory | None = None
    arrives_at: Callable[[int], int] = lambda _: 0


class HostedFlow(msgspec.Struct, frozen=True):
    """Result of a run.

    `loads`: loads of models; `ended_at_us`: instants at which rows ended, ascending.
    """

    simulated_s: float
    loads: int
    figures: FlowFigures
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    ended_at_us: tuple[int, ...]


def simulate_host(
    plan: Plan, table: Iterator[Mapping[str, object]], functions: Functions, host: HostOptions
) -> HostedFlow:
    """Return the time to the end of the last row."""
    return _Host(plan, table, functions, host).run()


class _Host:
    def __init__(
        self,
        plan: Plan,
        table: Iterator[Mapping[str, object]],
        functions: Functions,
        host: HostOptions,
    ) -> None:
        self._options = host
        self._turns = ModelTurns(host.turns, host.works, host.loads)
        self._states = [DeviceState() for _ in host.turns]
        self._opened: frozenset[str] = frozenset()
        self._loads = 0
        instances = {
            _instance(device, model): profile
            for device in range(len(host.turns))
            for model, profile in host.profiles.items()
        }
        capacity = len(host.turns) * max(each.max_num_seqs for each in host.profiles.values())
        limits = FlowLimits(capacity=capacity, max_open_rows=host.max_open_rows)
        models = {each.name: each.model for each in host.works}
        clients: list[FlowClient] = []

        def client(clock: VirtualClock, feed: Feed) -> FlowClient:
            made = FlowClient(
                plan,
                limits,
                table,
                functions_runner(functions),
                clock,
                feed,
                models=models,
                arrives_at=host.arrives_at,
            )
            clients.append(made)
            return made

        self._world = World(
            (),
            instances,
            host.policy,
            host.placement,
            clients=client,
            absent=instances,
            links=None if host.memory is None else _links(instances, host.memory.tiers),
            tiers={} if host.memory is None else _tiers(host, host.memory),
        )
        self._clock, (self._client,) = self._world.clock, clients
        self._client.generated = self._world.fleet.progress

    def run(self) -> HostedFlow:
        self._client.handle_fact(OperatorsOpened(frozenset()))
        for each in self._turns.begin():
            self._switch(each)
        self._clock.call_at(_LOOK_US, self._look)
        self._world.run()
        stats = [engine.stats for engine in self._world.fleet.engines]
        cached = sum(each.cached_tokens for each in stats)
        return HostedFlow(
            simulated_s=self._clock.now() / SECOND,
            loads=self._loads,
            figures=self._client.executor.figures,
            prompt_tokens_computed=sum(each.queried_tokens for each in stats) - cached,
            prompt_tokens_cached=cached,
            ended_at_us=tuple(self._client.ended_at_us.values()),
        )

    def _look(self) -> None:
        gate = self._client.executor.gate
        for each in self._turns.look(gate.wanted, gate.in_flight):
            self._switch(each)
        self._open()
        self._later(_LOOK_US, self._look)

    def _switch(self, command: SwitchModel) -> None:
        self._open()  # before the device leaves: nothing is issued to it any more
        resident = self._states[command.device].resident
        if resident == self._weights(command):
            self._loaded(command)
            return
        if resident is not None:
            self._world.leave(_instance(command.device, resident))
        self._when_idle(command)

    def _when_idle(self, command: SwitchModel) -> None:
        state, model = self._states[command.device], self._weights(command)
        if state.resident is not None:
            instance_id = _instance(command.device, state.resident)
            if not self._world.fleet.stop_if_empty(instance_id):
                self._later(_LOOK_US, partial(self._when_idle, command))
                return
        self._loads += 1
        self._states[command.device] = DeviceState(resident=model, known=state.known | {model})
        takes_us = round(load_us(state, model, self._options.loads))
        self._later(takes_us, partial(self._loaded, command))

    def _loaded(self, command: SwitchModel) -> None:
        instance_id = _instance(command.device, self._weights(command))
        self._world.join(instance_id, (command.turn.model,))
        self._turns.loaded(command.device)
        self._open()

    def _weights(self, command: SwitchModel) -> str:
        return self._options.weights.get(command.turn.model, command.turn.model)

    def _later(self, us: int, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + us, callback)

    def _open(self) -> None:
        opened = self._turns.opened()
        if opened != self._opened:
            self._opened = opened
            self._client.handle_fact(OperatorsOpened(opened))


def _links(instances: Iterable[str], tiers: KvTiers) -> KvLinks:
    assert tiers.host is not None
    link = CacheLink(
        gbit_s=tiers.host.gbit_s,
        latency_us=tiers.host.latency_s * SECOND,
        host_gb_s=tiers.host.bytes_per_s / 1e9,
    )
    return KvLinks(dict.fromkeys(instances, link), tiers.bytes_per_token)


def _tiers(host: HostOptions, memory: HostMemory) -> dict[str, HostTier]:
    """Return counts by instance; instances of one model share it."""
    found: dict[str, HostTier] = {}
    for model, engine in host.profiles.items():

        def loads(blocks: int, engine: EngineProfile = engine) -> bool:
            tokens = blocks * engine.block_size
            return choose(engine, memory.tiers, tokens, in_host=tokens).action == "load"

        tier = HostTier(memory.tokens // engine.block_size, loads)
        found |= {_instance(device, model): tier for device in range(len(host.turns))}
    return found


def _instance(device: int, model: str) -> str:
    return f"device-{device + 1}/{model}"
