"""Choose the model of each device over time: devices cycle through the phases of a plan.

A phase is a model with operators that were placed on the device. A device leaves it when no call of
these operators is wanted, and none can result from the calls that engines run now. It continues
with the next of its phases, cyclically, whose calls are wanted or expected. So a batch of rows (as
many as may be open) passes all phases, and then the next batch; skipped branches and the number of
a loop's rounds make no difference.

The last device with a model leaves it only once all its calls have ended, since waiting calls hold
the slots of others. If another device has the model, a load must be worth it: the wanted calls take
longer than the load.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.workflows.compile.device_work import LoadTime, OperatorWork


class DeviceTurn(msgspec.Struct, frozen=True):
    """Model on a device, and the operators it serves."""

    model: str
    operators: tuple[str, ...]


class SwitchModel(msgspec.Struct, frozen=True):
    """Load another model once the calls of the device's model have ended; then call `loaded`."""

    device: int
    turn: DeviceTurn


class _Device:
    def __init__(self, turns: Sequence[DeviceTurn]) -> None:
        self.turns = turns
        self.at: int | None = None
        self.is_loading = False
        self.is_leaving = False  # no new calls of its model

    @property
    def turn(self) -> DeviceTurn | None:
        return None if self.at is None else self.turns[self.at]

    @property
    def model(self) -> str | None:
        return None if self.turn is None else self.turn.model


class ModelTurns:
    """Current turns of all devices.

    `turns`: of each device, in order; operators in no turn belong to all turns of their model.
    `works`: costs and inputs of operators.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[DeviceTurn]],
        works: Sequence[OperatorWork],
        loads: Mapping[str, LoadTime],
    ) -> None:
        assert any(turns), "a plan places something"
        self._devices = [_Device(each) for each in turns]
        self._works = {each.name: each for each in works}
        self._loads = dict(loads)
        placed = {name for each in turns for turn in each for name in turn.operators}
        self._beside: dict[str, tuple[str, ...]] = {}
        for each in works:
            if each.name not in placed:
                self._beside[each.model] = (*self._beside.get(each.model, ()), each.name)

    def begin(self) -> list[SwitchModel]:
        """Return the first load of each device."""
        return [self._switch(n, 0) for n, each in enumerate(self._devices) if each.turns]

    def loaded(self, device: int, took_us: float | None = None) -> None:
        """Note that a device's model serves.

        `took_us`: measured time of the load, for later decisions.
        """
        self._devices[device].is_loading = False
        model = self._devices[device].model
        if took_us is not None and model is not None:
            self._loads[model] = LoadTime(load_us=took_us)

    def opened(self) -> frozenset[str]:
        """Return the operators whose model is loaded, so that their calls may be issued."""
        here = {each.model for each in self._devices if not each.is_leaving and not each.is_loading}
        return frozenset(name for name, each in self._works.items() if each.model in here)

    def look(self, wanted: Mapping[str, int], in_flight: Mapping[str, int]) -> list[SwitchModel]:
        """Return the switches to make, by the calls of each operator wanted, and in flight."""
        found: list[SwitchModel] = []
        expected = self._expected(wanted)
        for number, device in enumerate(self._devices):
            if device.turn is None or device.is_loading:
                continue
            device.is_leaving = False
            if any(expected[name] for name in self._operators(device.turn)):
                continue
            at = self._next(device, expected)
            if at is None:
                continue
            if device.turns[at].model == device.model:
                device.at = at
                continue
            if self._others_with(device) or not self._running(device, in_flight):
                found.append(self._switch(number, at))
                expected = self._expected(wanted)
            else:
                device.is_leaving = True
        return found

    def _switch(self, number: int, at: int) -> SwitchModel:
        device = self._devices[number]
        device.at, device.is_loading, device.is_leaving = at, True, False
        return SwitchModel(number, device.turns[at])

    def _operators(self, turn: DeviceTurn) -> tuple[str, ...]:
        return (*turn.operators, *self._beside.get(turn.model, ()))

    def _expected(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return the calls of each operator that are wanted, or may follow from current calls."""
        there = {each.model for each in self._devices if not each.is_leaving}
        found: dict[str, int] = {}
        for name, work in self._works.items():
            comes = [
                found.get(need, 0)
                for need in work.needs
                if need in self._works and self._works[need].model in there
            ]
            found[name] = wanted.get(name, 0) + max(comes, default=0)
        return found

    def _next(self, device: _Device, expected: Mapping[str, int]) -> int | None:
        assert device.at is not None
        count = len(device.turns)
        for step in range(1, count):
            at = (device.at + step) % count
            turn = device.turns[at]
            calls = {name: expected[name] for name in self._operators(turn)}
            if any(calls.values()) and self._is_worth_it(device, turn, calls):
                return at
        return None

    def _is_worth_it(self, device: _Device, turn: DeviceTurn, calls: Mapping[str, int]) -> bool:
        there = sum(each.model == turn.model for each in self._devices if each is not device)
        if not there or turn.model == device.model:
            return True
        us = sum(
            count * self._works[name].run_us[0] / max(1, self._works[name].calls)
            for name, count in calls.items()
        )
        return us / (there + 1) > self._loads[turn.model].load_us

    def _others_with(self, device: _Device) -> bool:
        return any(
            each.model == device.model and not each.is_loading and not each.is_leaving
            for each in self._devices
            if each is not device
        )

    def _running(self, device: _Device, in_flight: Mapping[str, int]) -> bool:
        return any(
            in_flight.get(name, 0)
            for name, work in self._works.items()
            if work.model == device.model
        )
