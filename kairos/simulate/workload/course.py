"""A workflow under way: which of its calls may be made."""

from collections import defaultdict

from kairos.simulate.workload.workflows import Workflow


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

    def begin(self) -> list[int]:
        """The calls that wait for none."""
        return [position for position, missing in enumerate(self._missing) if not missing]

    def ended(self, position: int) -> list[int]:
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
