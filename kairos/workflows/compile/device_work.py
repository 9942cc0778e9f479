"""Work of devices, and its schedule: one model at a time is resident on each device.

A device runs operators one by one, each over all rows of a batch or over its share of them. Between
two operators of different models it loads the second model. Rows flow on as they end: an operator
that needs another may begin when the first rows of that one have ended, and ends after the last of
them. Times are µs since the start, as floats, since they are estimates.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kairos.core import SetupError

MOST_DEVICES = 64


class OperatorWork(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an operator for all rows of a batch.

    `run_us`: their time on one device, on two that share them, and so on; at least one entry.
    `last_us`: time of the last call once its inputs are there; None: equal to the whole, so that no
    call begins before all its inputs have ended, as in Halo's model of a workflow. `context`: the
    shared prefix of its prompts; after an operator of the same model and context on the same
    device, `reused_us` of the time on one device is saved.
    """

    name: str
    model: str
    needs: tuple[str, ...] = ()
    calls: int = 1
    run_us: tuple[float, ...]
    last_us: float | None = None
    context: str | None = None
    reused_us: float = 0.0


class LoadTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time until a model serves on a device.

    `load_us`: the first time; `wake_us`: if it was there before and sleeps (None: as the first
    time); `stay_us`: if it is resident, added to the calls themselves.
    """

    load_us: float
    wake_us: float | None = None
    stay_us: float = 0.0


class DevicePhase(msgspec.Struct, frozen=True, kw_only=True):
    """Operator on a device, with the share `part` (from 0) of `of`. It begins after the load."""

    device: int
    operator: str
    model: str
    part: int
    of: int
    load_us: float  # of the model, before it; 0 if it was resident
    begins_at: float
    ends_at: float


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of devices: phases in the order of placement; for a device, in the order of its work."""

    devices: int
    phases: tuple[DevicePhase, ...]

    @property
    def makespan_us(self) -> float:
        return max((each.ends_at for each in self.phases), default=0.0)

    @property
    def loads(self) -> int:
        return sum(each.load_us > 0 for each in self.phases)

    @property
    def choices(self) -> "list[DeviceChoice]":
        """Return the operators in the order of placement, each with its devices."""
        devices: dict[str, list[int]] = {}
        for phase in self.phases:
            devices.setdefault(phase.operator, []).append(phase.device)
        return [DeviceChoice(name, tuple(of)) for name, of in devices.items()]

    def models(self, device: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the models resident on a device in turn, each with its operators."""
        found: list[tuple[str, list[str]]] = []
        for phase in self.phases:
            if phase.device == device:
                if not found or found[-1][0] != phase.model:
                    found.append((phase.model, []))
                found[-1][1].append(phase.operator)
        return tuple((model, tuple(dict.fromkeys(names))) for model, names in found)


class DeviceChoice(NamedTuple):
    """Devices of an operator; several share its calls."""

    operator: str
    devices: tuple[int, ...]


class DeviceState(NamedTuple):
    free_at: float = 0.0
    resident: str | None = None
    known: frozenset[str] = frozenset()  # that were loaded on it
    context: tuple[str, str | None] | None = None  # of its latest operator, with its model


class WorkTiming(NamedTuple):
    """Times of an operator, over all its devices."""

    begins_at: float
    first_at: float  # when operators that need it may begin
    ends_at: float


def check_work(works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int) -> None:
    """Raise SetupError if the work cannot be placed."""
    if not 1 <= devices <= MOST_DEVICES:
        raise SetupError(f"--devices {devices}: give 1 to {MOST_DEVICES}")
    for each in works:
        if each.model not in loads:
            raise SetupError(
                f"it is not known how long model '{each.model}' takes to load, which operator "
                f"'{each.name}' asks: name it in the file of --load-times"
            )
        if not each.run_us or min(each.run_us) < 0:
            raise SetupError(
                f"operator '{each.name}' must take a time from 0 up, not {each.run_us}"
            )


def load_us(state: DeviceState, model: str, loads: Mapping[str, LoadTime]) -> float:
    """Return the time until the model serves on the device."""
    load = loads[model]
    if state.resident == model:
        return load.stay_us
    if model in state.known and load.wake_us is not None:
        return load.wake_us
    return load.load_us


def when(
    work: OperatorWork,
    state: DeviceState,
    parts: int,
    needed: Iterable[WorkTiming],
    loads: Mapping[str, LoadTime],
) -> WorkTiming:
    """Return the times of a share of an operator, as the next work of a device."""
    run = work.run_us[min(parts, len(work.run_us)) - 1]
    if work.context is not None and state.context == (work.model, work.context):
        run = max(0.0, run - work.reused_us / parts)
    last = run if work.last_us is None else min(run, work.last_us)
    begins = state.free_at + load_us(state, work.model, loads)
    ends = 0.0
    for each in needed:
        begins = max(begins, each.first_at)
        ends = max(ends, each.ends_at)
    return WorkTiming(begins, begins + last, max(begins + run, ends + last))


def after(work: OperatorWork, state: DeviceState, ends_at: float) -> DeviceState:
    """Return the device's state after it has run an operator."""
    return DeviceState(ends_at, work.model, state.known | {work.model}, (work.model, work.context))


def schedule(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    devices: int,
    choices: Iterable[DeviceChoice],
) -> DevicePlan:
    """Return the plan of choices, which must be in an order of dependencies."""
    by_name = {each.name: each for each in works}
    states = [DeviceState()] * devices
    ended: dict[str, WorkTiming] = {}
    phases: list[DevicePhase] = []
    for choice in choices:
        work, parts = by_name[choice.operator], len(choice.devices)
        needed = [ended[name] for name in work.needs if name in by_name]
        shares: list[WorkTiming] = []
        for part, device in enumerate(choice.devices):
            state = states[device]
            timing = when(work, state, parts, needed, loads)
            shares.append(timing)
            phases.append(
                DevicePhase(
                    device=device,
                    operator=work.name,
                    model=work.model,
                    part=part,
                    of=parts,
                    load_us=load_us(state, work.model, loads),
                    begins_at=timing.begins_at,
                    ends_at=timing.ends_at,
                )
            )
            states[device] = after(work, state, timing.ends_at)
        ended[work.name] = WorkTiming(
            min(each.begins_at for each in shares),
            min(each.first_at for each in shares),
            max(each.ends_at for each in shares),
        )
    return DevicePlan(devices=devices, phases=tuple(phases))
