"""Place operators on devices that switch models: the plans of simple rules, improved by moves.

The cost of a plan is the time when the last operator ends, loads and waits for dependencies
included; with `last_us`, rows stream from operator to operator. An operator may be shared by
several devices if it is heavy: if it runs longer on one device than its model takes to load. With
one model there is nothing to switch: all operators are on all devices.

Deviation from the paper: Halo's Algorithm 1 is a beam search over partial plans. Here whole plans
are improved (`placement_moves.py`), of a few operators the plans of all rules; a beam in addition
made plans of few operators longer (`docs/decisions/flow-parts.md`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from kairos.workflows.compile.device_work import (
    DeviceChoice,
    DevicePlan,
    LoadTime,
    OperatorWork,
    check_work,
    schedule,
)
from kairos.workflows.compile.placement_baselines import (
    co_located,
    data_parallel,
    one_by_one,
    round_robin,
)
from kairos.workflows.compile.placement_moves import HISTORIES, PlanMoves

_FEW = 12  # operators, up to which the plans of all rules are improved
# Steps of moves: in total, and for each operator: evaluated devices, 50 a microsecond in C.
_STEPS, _STEPS_EACH = 10_000_000, 300_000
_STEPS_EACH_OF_FEW = 600_000
_SLOWER, _SLOWER_OF_FEW = 30, 10  # factors, if Python takes the steps


def place_operators(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    devices: int,
    *,
    replicas: bool = True,
) -> DevicePlan:
    """Return the best plan found; deterministic.

    `works`: each after the operators it needs; needs that are not among them take no time.

    A dozen operators take a tenth of a second of CPU time, a hundred on 16 devices a second. If the
    C code is not compiled, fewer moves are tried, in up to three seconds, and plans may be longer.

    Raises:
        SetupError: a load time is missing, or there are too many devices.
    """
    check_work(works, loads, devices)
    if replicas and len({each.model for each in works}) <= 1:
        return data_parallel(works, loads, devices)
    moves = PlanMoves(works, loads, devices, replicas=replicas)
    rules = (plan.choices for plan in _rules(works, loads, devices, replicas))
    plans = sorted(rules, key=moves.cost)
    histories: tuple[int, ...] = 2 * HISTORIES
    slower = _SLOWER_OF_FEW
    steps = _STEPS_EACH_OF_FEW * len(works)
    if len(works) > _FEW:
        histories, slower = HISTORIES, _SLOWER
        steps = _STEPS + _STEPS_EACH * len(works)
        # Where operators are shared plans are unlike those where none is: no move leads from one
        # kind to the other.
        others = (each for each in plans if _is_shared(each) != _is_shared(plans[0]))
        plans = [plans[0], *islice(others, 1)]
    steps //= 1 if moves.is_native else slower
    return schedule(works, loads, devices, moves.improve(plans, steps, histories))


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
