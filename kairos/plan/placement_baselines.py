"""Placements that Halo's is compared with (Table 4 of its paper): operators in topological order,
each by a rule. `works`: each after what it needs."""

from collections.abc import Mapping, Sequence

from kairos.plan.device_work import DeviceChoice, DevicePlan, LoadTime, OperatorWork, schedule


def round_robin(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> DevicePlan:
    """Operators to devices in turn, each with all its rows."""
    choices = (DeviceChoice(each.name, (n % devices,)) for n, each in enumerate(works))
    return schedule(works, loads, devices, choices)


def co_located(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> DevicePlan:
    """Each on the device of the first that it needs; those that need none, in turn."""
    of: dict[str, int] = {}
    turn = 0
    for each in works:
        parents = [of[name] for name in each.needs if name in of]
        of[each.name] = parents[0] if parents else turn % devices
        turn += not parents
    choices = (DeviceChoice(each.name, (of[each.name],)) for each in works)
    return schedule(works, loads, devices, choices)


def data_parallel(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> DevicePlan:
    """Each on all devices, which share its rows."""
    choices = (DeviceChoice(each.name, tuple(range(devices))) for each in works)
    return schedule(works, loads, devices, choices)
