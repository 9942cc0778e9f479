"""Whole workflows, checked: what a replay and a simulation drive, call by call (`Course`).

What each call waits for is read from the parents that its line names, or else from times.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kairos.core import InvalidFile
from kairos.simulate.workload.prompt import Prompt, prompts
from kairos.simulate.workload.workflow_file import FileCall, numbered_calls

MAX_CALLS = 2_000_000  # of a file
MAX_WORKFLOW_CALLS = 10_000  # as many as the orchestrator follows of one workflow

# What an `upstream` may be beside an agent of the workflow. The two terminals are the participants
# of AG2's and Magentic-One's conversations that run code, and never call a model.
OUTSIDE = ("user", "env", "tool", "code_exec", "Computer_terminal", "ComputerTerminal")

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


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one task, in order of `call_index`; the lists are parallel to `calls`."""

    id: str
    app: str
    calls: tuple[FileCall, ...]
    waits_for: tuple[tuple[int, ...], ...]  # positions of the calls that must have ended before
    prompts: tuple[Prompt, ...]  # what each call's prompt shares with others


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, and when its user asks for it, in µs from the start."""

    at_us: int
    workflow: Workflow


def load_workflows(path: Path) -> list[Workflow]:
    """Load the workflows of a file, in the order of their beginnings.

    Raises:
        InvalidFile: The first error, with its line; an unknown upstream is reported after the rest
            of the file has been read.
    """
    reading = _Reading(path)
    for line, call in numbered_calls(path):
        reading.add(line, call)
    return reading.workflows()


def workflow(calls: Sequence[FileCall]) -> Workflow:
    """The workflow that these calls make, which ascend by `call_index`."""
    return Workflow(
        id=calls[0].workflow_id,
        app=calls[0].app,
        calls=tuple(calls),
        waits_for=waits_for(calls),
        prompts=prompts(calls),
    )


class _Reading:
    """The calls of a file so far, by workflow, and what to look at again at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._calls: dict[str, list[FileCall]] = {}
        self._first_at: dict[tuple[str, str], int] = {}  # (workflow, agent) -> line of a first call
        self._unknown: list[tuple[int, FileCall]] = []  # an upstream that had not called by then

    def add(self, line: int, call: FileCall) -> None:
        calls = self._calls.setdefault(call.workflow_id, [])
        self._count += 1
        if problem := self._problem(calls, call):
            raise InvalidFile(self._path, problem, line=line)
        outside = call.upstream is None or call.upstream in OUTSIDE
        if not outside and (call.workflow_id, call.upstream) not in self._first_at:
            self._unknown.append((line, call))
        calls.append(call)
        self._first_at.setdefault((call.workflow_id, call.agent), line)

    def _problem(self, calls: Sequence[FileCall], call: FileCall) -> str | None:
        if self._count > MAX_CALLS:
            return f"more than {MAX_CALLS} calls; split the file"
        return _problem_of(call) or (_problem_after(calls, call) if calls else None)

    def workflows(self) -> list[Workflow]:
        if not self._calls:
            raise InvalidFile(self._path, "there is no call in the file")
        self._check_unknown()
        return [workflow(calls) for calls in self._calls.values()]

    def _check_unknown(self) -> None:
        """Refuse an upstream that makes no earlier call of the workflow.

        A conversation may open with words that are put into an agent's mouth; that agent is then
        the upstream of the first call, and need not have called a model at all: so it is in 93 of
        the 126 workflows recorded of AG2. So the first call's upstream may be any name in an app
        where some workflow opens with the name of one of its agents.
        """
        agents: defaultdict[str, set[str]] = defaultdict(set)
        for workflow_id, agent in self._first_at:
            agents[self._calls[workflow_id][0].app].add(agent)
        first = [each for each in self._unknown if each[1] is self._calls[each[1].workflow_id][0]]
        conversations = {call.app for _, call in first if call.upstream in agents[call.app]}
        opening = {line for line, call in first if call.app in conversations}
        for line, call in self._unknown:
            if line not in opening:
                raise InvalidFile(self._path, self._unknown_upstream(call), line=line)

    def _unknown_upstream(self, call: FileCall) -> str:
        assert call.upstream is not None
        what = f"the upstream '{call.upstream}' of the call by '{call.agent}'"
        if later := self._first_at.get((call.workflow_id, call.upstream)):
            return f"{what} makes its first call only later, in line {later}"
        return (
            f"{what} makes no call in workflow '{call.workflow_id}'; "
            f"from outside come {', '.join(OUTSIDE)} and null"
        )


def _problem_of(call: FileCall) -> str | None:
    """Return the problem of a call by itself, or None."""
    if (call.cached_prefix_tokens or 0) > call.prompt_tokens:
        return f"cached_prefix_tokens is above prompt_tokens ({call.prompt_tokens})"
    if (call.shared_prefix_tokens or 0) > call.prompt_tokens:
        return f"shared_prefix_tokens is above prompt_tokens ({call.prompt_tokens})"
    if call.end_ms is not None and call.end_ms < (call.start_ms or 0):
        return f"end_ms is before start_ms ({call.start_ms})"
    return None


def _problem_after(calls: Sequence[FileCall], call: FileCall) -> str | None:
    """Return the problem of a call after the earlier ones of its workflow, or None."""
    if call.app != calls[0].app:
        return f"workflow '{call.workflow_id}' is of two apps: '{calls[0].app}' and '{call.app}'"
    if call.call_index <= calls[-1].call_index:
        return (
            f"call_index {call.call_index} after {calls[-1].call_index} in workflow "
            f"'{call.workflow_id}': it must ascend, since calls wait for those before them"
        )
    if call.workflow_start_ms != calls[0].workflow_start_ms:
        return (
            f"workflow '{call.workflow_id}' has two workflow_start_ms: "
            f"{calls[0].workflow_start_ms} and {call.workflow_start_ms}"
        )
    if len(calls) == MAX_WORKFLOW_CALLS:
        return f"more than {MAX_WORKFLOW_CALLS} calls in workflow '{call.workflow_id}'"
    return None


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


class Course:
    """Calls by their positions in the workflow. Each is released once, when it may be made."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self._missing = [len(before) for before in workflow.waits_for]
        self._left = len(workflow.calls)
        self._followers: dict[int, list[int]] = defaultdict(list)
        for position, before in enumerate(workflow.waits_for):
            for each in before:
                self._followers[each].append(position)

    @property
    def is_done(self) -> bool:
        """Whether all calls have ended."""
        return not self._left

    def first_calls(self) -> list[int]:
        """The calls that wait for none."""
        return [position for position, missing in enumerate(self._missing) if not missing]

    def finish_call(self, position: int) -> list[int]:
        """Note the end of a call; return the calls that may begin now, by position."""
        self._left -= 1
        released: list[int] = []
        for follower in self._followers.get(position, ()):
            self._missing[follower] -= 1
            if not self._missing[follower]:
                released.append(follower)
        return released

    def gap_us(self, position: int) -> int:
        """Time of tools and users before the call."""
        return (self.workflow.calls[position].gap_ms or 0) * 1000
