"""Placements by simple rules: starting points of `placement.py`, and baselines.

The first three are from Table 4 of Halo's paper: operators in topological order, each by a rule.
The fourth is list scheduling, not in the paper. `works`: each after the operators it needs.
"""

from collections.abc import Mapping, Sequence

from kairos.workflows.compile.device_work import (
    DeviceChoice,
    DevicePlan,
    DeviceState,
    LoadTime,
    OperatorWork,
    WorkTiming,
    after,
    load_us,
    schedule,
    when,
)


def round_robin(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> DevicePlan:
    """Place operators on devices in turn, each with all its rows."""
    choices = (DeviceChoice(each.name, (n % devices,)) for n, each in enumerate(works))
    return schedule(works, loads, devices, choices)


def co_located(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> DevicePlan:
    """Place each operator on the device of the first that it needs; independent ones in turn."""
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
    """Place each operator on all devices, which share its rows."""
    choices = (DeviceChoice(each.name, tuple(range(devices))) for each in works)
    return schedule(works, loads, devices, choices)


def one_by_one(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    devices: int,
    *,
    patience: float = 0.0,
    load_share: float = 0.0,
) -> DevicePlan:
    """Place the ready operator with the longest path to the end first, where it ends first.

    Args:
        works: Each after the operators it needs.
        loads: Load times of models.
        devices: Number of devices.
        patience: Above 0, an operator and a device are chosen together: by the path to the end,
            less the load and `patience` times the possible start.
        load_share: Share of its model's load that counts in an operator's path.
    """
    followers = _followers(works)
    waits_for = {each.name: len(set(each.needs) & followers.keys()) for each in works}
    way = _ways(works, loads, followers, load_share)
    states = [DeviceState()] * devices
    ended: dict[str, WorkTiming] = {}
    choices: list[DeviceChoice] = []
    ready = [each for each in works if not waits_for[each.name]]

    def priced(work: OperatorWork, device: int) -> tuple[tuple[float, float], WorkTiming]:
        needed = [ended[name] for name in work.needs if name in ended]
        timing = when(work, states[device], 1, needed, loads)
        price = timing.ends_at
        if patience:
            load = load_us(states[device], work.model, loads)
            price = patience * timing.begins_at + load - way[work.name]
        return (price, timing.ends_at), timing

    while ready:
        tried = sorted(ready, key=lambda each: -way[each.name])[: 2 * devices if patience else 1]
        found = [
            (priced(work, device), work, device) for work in tried for device in range(devices)
        ]
        (_, timing), work, device = min(found, key=lambda each: each[0][0])
        states[device] = after(work, states[device], timing.ends_at)
        ended[work.name] = timing
        choices.append(DeviceChoice(work.name, (device,)))
        ready.remove(work)
        for other in followers[work.name]:
            waits_for[other.name] -= 1
            if not waits_for[other.name]:
                ready.append(other)
    return schedule(works, loads, devices, choices)


def _followers(works: Sequence[OperatorWork]) -> dict[str, list[OperatorWork]]:
    found: dict[str, list[OperatorWork]] = {each.name: [] for each in works}
    for each in works:
        for name in set(each.needs) & found.keys():
            found[name].append(each)
    return found


def _ways(
    works: Sequence[OperatorWork],
    loads: Mapping[str, LoadTime],
    followers: Mapping[str, Sequence[OperatorWork]],
    load_share: float,
) -> dict[str, float]:
    """Return the longest path from the beginning of each operator to the end."""
    way: dict[str, float] = {}
    for each in reversed(works):
        behind = max((way[other.name] for other in followers[each.name]), default=0.0)
        way[each.name] = each.run_us[0] + load_share * loads[each.model].load_us + behind
    return way
