"""Place operators on devices that switch models: a beam search, after Halo's Algorithm 1.

A partial plan is extended by one operator at a time: one whose needs are placed, on one device, or
shared by several. This reaches every order of work without needless waits. The best `width` partial
plans with the same number of operators are kept, by a lower bound of the final cost: Halo's Ca +
Cr, with the loads that devices still have to make, and with the longest path after the placed
operators.

Deviations from the paper:

- A round places one operator, not a bijection of m operators to m workers. Bijections cannot give
  one device a long operator and another three short ones in the same time, and there are m! of
  them: 16 devices have 2·10^13. One at a time there are (ready operators) x (devices that differ):
  devices in the same state are one, as are partial plans that differ only by a permutation of
  these.
- The cost is the time when the last operator ends, waits for dependencies included, not the longest
  sum of any worker's work. With `last_us`, rows stream from operator to operator.
- An operator is heavy if it runs longer on one device than its model takes to load.
- Only the ready operators with the longest paths behind them are tried: twice as many as devices,
  at least 8.
- In addition to the beam there are plans by simple rules (`placement_baselines.py`). The best are
  improved by moves (`placement_moves.py`), so none of the rules gives a better plan. For more than
  a dozen operators the beam is left out: moves from the best rule's plan reach plans as good.

With one model there is nothing to switch: all operators are on all devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, islice
from typing import NamedTuple

from kairos.workflows.compile.device_work import (
    DeviceChoice,
    DevicePlan,
    DeviceState,
    LoadTime,
    OperatorWork,
    WorkTiming,
    after,
    check_work,
    load_us,
    schedule,
    together,
    when,
)
from kairos.workflows.compile.placement_baselines import (
    co_located,
    data_parallel,
    one_by_one,
    round_robin,
)
from kairos.workflows.compile.placement_moves import PlanMoves

WIDTH = 32
_FEW = 12  # operators, up to which there is a beam
# Steps of moves: in total, and for each operator: evaluated devices, 50 a microsecond in C.
_STEPS, _STEPS_EACH = 10_000_000, 300_000
_STEPS_EACH_OF_FEW = 100_000
_SLOWER = 30  # factor, if Python takes the steps
_LEAST_TRIED = 8


class _Partial(NamedTuple):
    """Plan of some operators. `left_us`: device time that the others take at least."""

    placed: int  # a bit for each operator
    states: tuple[DeviceState, ...]
    ended: tuple[WorkTiming | None, ...]
    path_us: float  # until what is placed, and what follows from it, has ended
    left_us: float
    left: tuple[int, ...]  # operators of each model that are not placed
    loads: int
    choices: "tuple[_Partial, DeviceChoice] | None"


def place_operators(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    devices: int,
    *,
    width: int = WIDTH,
    replicas: bool = True,
) -> DevicePlan:
    """Return the best plan found; deterministic.

    `works`: each after the operators it needs; needs that are not among them take no time.

    A hundred operators on 16 devices take a second of CPU time. If the C code is not compiled,
    fewer moves are tried, in two to three seconds, and plans may be longer.

    Raises:
        SetupError: a load time is missing, or there are too many devices.
    """
    check_work(works, loads, devices)
    if replicas and len({each.model for each in works}) <= 1:
        return data_parallel(works, loads, devices)
    plans = [plan.choices for plan in _rules(works, loads, devices, replicas)]
    if len(works) <= _FEW:
        plans.append(_beam(works, loads, devices, width, replicas))
    moves = PlanMoves(works, loads, devices, replicas=replicas)
    steps = _STEPS + _STEPS_EACH * len(works)
    if len(works) <= _FEW:
        steps = _STEPS_EACH_OF_FEW * len(works)
    steps //= 1 if moves.is_native else _SLOWER
    plans.sort(key=moves.cost)
    # Where operators are shared plans are unlike those where none is: no move leads from one kind
    # to the other.
    others = (each for each in plans if _is_shared(each) != _is_shared(plans[0]))
    return schedule(works, loads, devices, moves.improve([plans[0], *islice(others, 1)], steps))


def _is_shared(plan: Sequence[DeviceChoice]) -> bool:
    return any(len(each.devices) > 1 for each in plan)


def _rules(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int, replicas: bool
) -> Iterator[DevicePlan]:
    yield round_robin(works, loads, devices)
    yield co_located(works, loads, devices)
    if replicas:
        yield data_parallel(works, loads, devices)
    for patience in (0.0, 0.7):
        for load_share in (0.0, 0.5):
            yield one_by_one(works, loads, devices, patience=patience, load_share=load_share)


def _beam(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    devices: int,
    width: int,
    replicas: bool,
) -> list[DeviceChoice]:
    search = _Search(works, loads, devices, replicas)
    beam = [search.begin()]
    for _ in works:
        found: dict[tuple[object, ...], tuple[tuple[float, int], _Partial]] = {}
        for partial in chain.from_iterable(map(search.extended, beam)):
            scored = (search.bound(partial), partial.loads), partial
            key = search.identity(partial)
            if key not in found or scored[0] < found[key][0]:
                found[key] = scored
        beam = [partial for _, partial in nsmallest(width, found.values(), lambda each: each[0])]
    return _choices(beam[0])


def _choices(partial: _Partial) -> list[DeviceChoice]:
    found: list[DeviceChoice] = []
    at = partial.choices
    while at is not None:
        found.append(at[1])
        at = at[0].choices
    return found[::-1]


class _Search:
    def __init__(
        self,
        works: Sequence[OperatorWork],
        loads: Mapping[str, LoadTime],
        devices: int,
        replicas: bool,
    ) -> None:
        self._works, self._loads, self._replicas = works, loads, replicas
        self._devices = devices
        number = {each.name: n for n, each in enumerate(works)}
        self._needs = [[number[name] for name in w.needs if name in number] for w in works]
        self._followers: list[list[int]] = [[] for _ in works]
        for n, needed in enumerate(self._needs):
            for other in needed:
                self._followers[other].append(n)
        self._models = list(dict.fromkeys(each.model for each in works))
        self._model = [self._models.index(each.model) for each in works]
        self._least = [_least_us(each) for each in works]
        self._tails = self._tails_us()

    def begin(self) -> _Partial:
        return _Partial(
            placed=0,
            states=(DeviceState(),) * self._devices,
            ended=(None,) * len(self._works),
            path_us=0.0,
            left_us=sum(self._area_us(n) for n in range(len(self._works))),
            left=tuple(self._model.count(n) for n in range(len(self._models))),
            loads=0,
            choices=None,
        )

    def bound(self, partial: _Partial) -> float:
        """Return a lower bound for all plans that extend a partial one."""
        free = sum(state.free_at for state in partial.states)
        resident = {state.resident for state in partial.states}
        for model, count in zip(self._models, partial.left, strict=True):
            if count and model not in resident:
                load = self._loads[model]
                free += load.load_us if load.wake_us is None else min(load.load_us, load.wake_us)
        return max(partial.path_us, (free + partial.left_us) / self._devices)

    def identity(self, partial: _Partial) -> tuple[object, ...]:
        """Return a key that is equal for partial plans with the same continuations."""
        seen = tuple(
            timing
            for n, timing in enumerate(partial.ended)
            if timing and any(not partial.placed >> each & 1 for each in self._followers[n])
        )
        states = sorted(partial.states, key=lambda s: (s.free_at, str(s.resident), str(s.context)))
        return partial.placed, seen, tuple(states), partial.path_us

    def extended(self, partial: _Partial) -> Iterator[_Partial]:
        ready = [
            n
            for n, needed in enumerate(self._needs)
            if not partial.placed >> n & 1 and all(partial.placed >> each & 1 for each in needed)
        ]
        tried = sorted(ready, key=lambda n: -self._tails[n] - self._least[n])
        for n in tried[: max(_LEAST_TRIED, 2 * self._devices)]:
            seen: set[DeviceState] = set()
            for device, state in enumerate(partial.states):
                if state not in seen:
                    seen.add(state)
                    yield self._with(partial, n, (device,))
            if self._replicas and len(ready) < self._devices and self._is_heavy(n):
                yield from self._shared(partial, n)

    def _shared(self, partial: _Partial, n: int) -> Iterator[_Partial]:
        """Yield plans in which the devices that could begin an operator first share it."""
        model = self._works[n].model
        first = sorted(
            range(self._devices),
            key=lambda device: (
                partial.states[device].free_at + load_us(partial.states[device], model, self._loads)
            ),
        )
        for parts in range(2, min(self._devices, self._works[n].calls) + 1):
            yield self._with(partial, n, tuple(sorted(first[:parts])))

    def _is_heavy(self, n: int) -> bool:
        work = self._works[n]
        return work.run_us[0] > self._loads[work.model].load_us

    def _with(self, partial: _Partial, n: int, devices: tuple[int, ...]) -> _Partial:
        work = self._works[n]
        needed = [timing for each in self._needs[n] if (timing := partial.ended[each])]
        states, shares, loads = list(partial.states), [], partial.loads
        for device in devices:
            state = states[device]
            shares.append(when(work, state, len(devices), needed, self._loads))
            loads += state.resident != work.model
            states[device] = after(work, state, shares[-1].ends_at)
        timing, model = together(shares), self._model[n]
        return _Partial(
            placed=partial.placed | 1 << n,
            states=tuple(states),
            ended=(*partial.ended[:n], timing, *partial.ended[n + 1 :]),
            path_us=max(partial.path_us, timing.ends_at + self._tails[n]),
            left_us=partial.left_us - self._area_us(n),
            left=(*partial.left[:model], partial.left[model] - 1, *partial.left[model + 1 :]),
            loads=loads,
            choices=(partial, DeviceChoice(work.name, devices)),
        )

    def _area_us(self, n: int) -> float:
        """Return a lower bound of the device time of an operator."""
        run = self._works[n].run_us
        shared = [us * parts for parts, us in enumerate(run[: self._devices], 1)]
        return max(0.0, min(shared) - self._works[n].reused_us)

    def _tails_us(self) -> list[float]:
        """Return the least time from each operator's end to the end of all its dependants."""
        tails = [0.0] * len(self._works)
        for n in reversed(range(len(self._works))):
            for other in self._followers[n]:
                tails[n] = max(tails[n], self._least[other] + tails[other])
        return tails


def _least_us(work: OperatorWork) -> float:
    """Return the least time of an operator's last call, once its inputs are there."""
    run = max(0.0, min(work.run_us) - work.reused_us)
    return run if work.last_us is None else min(run, work.last_us)
