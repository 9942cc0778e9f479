"""Dependencies between calls of a workflow."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from kairos.simulate.workload.workflow_file import FileCall

Positions = tuple[int, ...]

# A client may make its next call before the end of its last one has been recorded.
TOUCHING_MS = 2


def waits_for(calls: Sequence[FileCall]) -> tuple[Positions, ...]:
    """Per call, the positions of the earlier calls that must have ended, ascending.

    Direct ones only: a call that another of them waits for is left out. The time that this takes
    grows with the pairs of calls that may run side by side, else with the calls.
    """
    if all(call.parallel_group is None for call in calls):
        return tuple((index - 1,) if index else () for index in range(len(calls)))
    before: list[Positions] = []
    reached: list[int] = []  # bit i of reached[j]: j waits for i, directly or not
    last: list[int] = []  # the calls that no other waits for so far
    ends_ms: list[int] = []  # ascending
    same: dict[Positions, Positions] = {}  # a wide group's calls wait for the same ones: kept once
    for index, call in enumerate(calls):
        if index and _as_before(calls[index - 1], call, ends_ms):
            before.append(before[-1])
            reached.append(reached[-1])
        else:
            direct, reaches = _direct(calls, call, before, reached, last)
            before.append(same.setdefault(direct, direct))
            reached.append(reaches)
            last = [each for each in last if not reaches >> each & 1]
        last.append(index)
        if call.start_ms is not None and call.end_ms is not None:
            insort(ends_ms, call.end_ms)
    return tuple(before)


def must_have_ended(earlier: FileCall, later: FileCall) -> bool:
    """Return whether a call waits for an earlier one of its workflow.

    It does, unless they share a `parallel_group`. A refinement, not in the paper: if one of them is
    in a group and both were recorded with their times, the times decide, since groups alone cannot
    say which of two groups' calls ran concurrently, nor that a group is a chain (a sub-agent's).
    Between calls without a group they do not: whole seconds overlap where calls did not. Calls of
    different groups (or one of none) may overlap by `TOUCHING_MS` all the same.
    """
    if earlier.parallel_group is None and later.parallel_group is None:
        return True
    apart = earlier.parallel_group != later.parallel_group
    if _has_times(earlier) and _has_times(later):
        assert earlier.end_ms is not None
        assert later.start_ms is not None
        return earlier.end_ms <= later.start_ms + apart * TOUCHING_MS
    return apart


def _has_times(call: FileCall) -> bool:
    return call.start_ms is not None and call.end_ms is not None


def _as_before(previous: FileCall, call: FileCall, ends_ms: Sequence[int]) -> bool:
    """Return whether a call certainly waits for the same calls as the one before it.

    That is so if they share a group, and no call ended between their beginnings.
    """
    group = call.parallel_group
    if group is None or group != previous.parallel_group:
        return False
    if not _has_times(call) or not _has_times(previous):
        return not _has_times(call) and not _has_times(previous)
    assert call.start_ms is not None
    assert previous.start_ms is not None
    first, second = sorted((previous.start_ms, call.start_ms))
    return bisect_left(ends_ms, first) == bisect_right(ends_ms, second + TOUCHING_MS)


def _direct(
    calls: Sequence[FileCall],
    call: FileCall,
    before: Sequence[Positions],
    reached: Sequence[int],
    last: Sequence[int],
) -> tuple[Positions, int]:
    """Return what a new call waits for directly, and everything it waits for, as bits."""
    found: list[int] = []
    seen: set[int] = set()
    look = [*last]
    while look:
        each = look.pop()
        if each in seen:
            continue
        seen.add(each)
        if must_have_ended(calls[each], call):
            found.append(each)
        else:
            look.extend(before[each])
    direct: list[int] = []
    all_of_them = 0
    for each in sorted(found, reverse=True):
        if not all_of_them >> each & 1:
            direct.append(each)
            all_of_them |= reached[each] | 1 << each
    return tuple(reversed(direct)), all_of_them
