"""Improve plans of devices by moves: a local search after the rules of `placement.py`.

An operator, often one that the end waits for, is moved: to any device, between any two of its
operators, next to one of its model, in exchange with another, with all that a device runs of its
model, or shared by several. The result is accepted if it does not cost more than the plan some
moves before: late acceptance (Burke and Bykov, 2017), which needs no temperature. Walks with short
and long histories begin with given plans, then with the best so far. Deterministic. Not in the
papers.

`placement_moves.c` takes the steps, or Python if that is not compiled (`placement_walk.py`): the
same ones, but only a fiftieth of them in the same time.
"""

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, count

from kairos.core import declare_function, load_library
from kairos.workflows.compile.device_work import DeviceChoice, LoadTime, OperatorWork
from kairos.workflows.compile.placement_walk import (
    Cost,
    Problem,
    Reckoned,
    Walk,
    Walked,
    bits,
    walk_in_python,
)

HISTORIES = 100, 1_000, 3_000, 300  # moves in the history of a walk
_SLACK = 0.05  # of the time, that a walk from the best plan may lose at first
_IDLE, _IDLE_EACH = 20_000, 20  # moves without success that end a walk; per move of its history
_MOST_MODELS = 64  # a bit for each
_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int64


class PlanMoves:
    """Evaluates and improves plans. `replicas`: operators may be shared.

    `native`: use the C code, if it is compiled.
    """

    def __init__(
        self,
        works: Sequence[OperatorWork],
        loads: Mapping[str, LoadTime],
        devices: int,
        *,
        replicas: bool = True,
        native: bool = True,
    ) -> None:
        self._names = [each.name for each in works]
        self._number = {name: at for at, name in enumerate(self._names)}
        self._problem = _problem(works, loads, devices, replicas=replicas)
        is_few = len(self._problem.load) <= _MOST_MODELS
        self._native = _Native(self._problem) if native and is_few and _LIBRARY else None

    @property
    def is_native(self) -> bool:
        return self._native is not None

    def improve(
        self,
        plans: Sequence[Sequence[DeviceChoice]],
        steps: int,
        histories: Sequence[int] = HISTORIES,
    ) -> list[DeviceChoice]:
        """Return the best plan found in `steps`, the number of evaluated devices of operators.

        The first walks begin with the plans in turn, the others with the best so far.
        """
        starts = [self._numbered(each) for each in plans]
        order, on = min(starts, key=self._cost)
        best = self._cost((order, on))
        for turn in count():
            if steps <= 0 or not order:
                break
            is_first = turn < len(histories)
            history = histories[turn % len(histories)]
            how = Walk(
                steps=steps,
                idle_most=max(_IDLE, _IDLE_EACH * history),
                history=history,
                slack=0.0 if is_first else _SLACK,
                seed=turn + 1,
            )
            found = self.walk(*(starts[turn % len(starts)] if is_first else (order, on)), how)
            steps -= found.steps
            cost = self._cost((found.order, found.on))
            if cost < best:
                order, on, best = found.order, found.on, cost
        return [DeviceChoice(self._names[n], tuple(bits(on[n]))) for n in order]

    def walk(self, order: Sequence[int], on: Sequence[int], how: Walk) -> Walked:
        """Return the best plan of one walk."""
        if self._native is not None:
            return self._native.walk(order, on, how)
        return walk_in_python(self._problem, order, on, how)

    def cost(self, choices: Sequence[DeviceChoice]) -> Cost:
        """Return the cost of a plan; the least is best."""
        return self._cost(self._numbered(choices))

    def _cost(self, numbered: tuple[list[int], list[int]]) -> Cost:
        return Reckoned(self._problem, *numbered).cost

    def _numbered(self, choices: Sequence[DeviceChoice]) -> tuple[list[int], list[int]]:
        order, on = [self._number[each.operator] for each in choices], [0] * len(choices)
        for n, each in zip(order, choices, strict=True):
            on[n] = sum(1 << device for device in each.devices)
        return order, on


def _problem(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int, *, replicas: bool
) -> Problem:
    number = {each.name: at for at, each in enumerate(works)}
    needs = [[number[name] for name in each.needs if name in number] for each in works]
    followers: list[list[int]] = [[] for _ in works]
    for at, needed in enumerate(needs):
        for each in needed:
            followers[each].append(at)
    models = list(dict.fromkeys(each.model for each in works))
    times = [loads[name] for name in models]
    contexts = [(each.model, each.context) for each in works]
    tails = [0.0] * len(works)
    for at in reversed(range(len(works))):
        least = max(0.0, min(works[at].run_us) - works[at].reused_us)
        last = works[at].last_us
        least = least if last is None else min(least, last)
        for each in needs[at]:
            tails[each] = max(tails[each], least + tails[at])
    return Problem(
        devices=devices,
        needs=needs,
        followers=followers,
        model=[models.index(each.model) for each in works],
        context=[
            -1 if each.context is None else contexts.index((each.model, each.context))
            for each in works
        ],
        parts=[
            max(1, min(devices, each.calls))
            if replicas and each.run_us[0] > loads[each.model].load_us
            else 1
            for each in works
        ],
        run=[[each.run_us[min(n, len(each.run_us) - 1)] for n in range(devices)] for each in works],
        last=[-1.0 if each.last_us is None else each.last_us for each in works],
        reused=[each.reused_us for each in works],
        tails=tails,
        load=[each.load_us for each in times],
        wake=[each.load_us if each.wake_us is None else each.wake_us for each in times],
        stay=[each.stay_us for each in times],
    )


class _Native:
    """Problem in the layout of `placement_moves.c`."""

    def __init__(self, of: Problem) -> None:
        assert _LIBRARY is not None
        self._count, self._devices = len(of.needs), of.devices
        numbers = *_linked(of.needs), *_linked(of.followers), of.model, of.context, of.parts
        run = list(chain.from_iterable(of.run))
        times = run, of.last, of.reused, of.tails, of.load, of.wake, of.stay
        whole, floats = [array("q", each) for each in numbers], [array("d", each) for each in times]
        self._held = whole, floats
        at = [each.buffer_info()[0] for each in whole]
        at += [each.buffer_info()[0] for each in floats]
        addresses = (_ADDRESS * len(at))(*at)
        sizes = (_INT * 2)(self._count, self._devices)
        self._problem = ctypes.create_string_buffer(bytes(sizes) + bytes(addresses))
        self._bytes = declare_function(_LIBRARY, "kairos_walk_bytes", _INT, *[_INT] * 3)
        self._walk = declare_function(
            _LIBRARY, "kairos_walk", _INT, *[_ADDRESS] * 4, *[_INT] * 3, ctypes.c_double, _INT
        )

    def walk(self, order: Sequence[int], on: Sequence[int], how: Walk) -> Walked:
        best, best_on = array("q", order), array("Q", on)
        room = ctypes.create_string_buffer(self._bytes(self._count, self._devices, how.history))
        taken = self._walk(
            self._problem, best.buffer_info()[0], best_on.buffer_info()[0], room, *how
        )
        return Walked(list(best), list(best_on), taken)


def _linked(found: Sequence[Sequence[int]]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the offsets of each list, with the end, and all numbers."""
    return [0, *accumulate(map(len, found))], [*chain.from_iterable(found), 0]


_LIBRARY = load_library("kairos.workflows.compile", "placement_moves", ctypes.CDLL)
