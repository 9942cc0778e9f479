"""What an instance's latest calls tell of it: at which rate it fails sound ones. Ours."""

import math

from kairos.core.agent_key import AgentKey
from kairos.core.model import SECOND
from kairos.core.shared_lru import SharedLru

# At which an instance fails sound calls, as long as nothing is known of it, and how many calls that
# counts for: in what it did of late, and in what it did before.
RATE, RATE_CALLS, LONG_RATE_CALLS = 0.01, 1.0, 20.0
# What is left of earlier outcomes with each that follows: of late are four calls, before, fifty.
# The former tells that an instance broke, the latter that it fails some calls all the time.
MEMORY, LONG_MEMORY = 0.75, 0.98
WELL_US = 10 * SECOND  # after which without a served call an instance's good ones count half
MOST_OPEN = 64  # callers whose failures on one instance are told apart


class _Memory:
    """An instance's outcomes, the latest of which count most."""

    served: float = 0.0
    failed: float = 0.0

    def __init__(self, keeps: float) -> None:
        self.keeps = keeps

    def add(self, served: float, failed: float) -> None:
        self.served = self.keeps * self.served + served
        self.failed = self.keeps * self.failed + failed

    def rate(self, prior_calls: float, worth: float, without: float = 0.0) -> float:
        """`worth`: of what it served. `without` so many of the failures."""
        failed = max(0.0, self.failed - without)
        return (failed + RATE * prior_calls) / (worth * self.served + failed + prior_calls)


class _Open:
    """What one caller's calls that were served nowhere cost an instance, as it was after so many of
    its outcomes."""

    late: float = 0.0
    long: float = 0.0
    outcomes: int = 0

    def at(self, outcomes: int) -> "_Open":
        passed = outcomes - self.outcomes
        self.late *= MEMORY**passed
        self.long *= LONG_MEMORY**passed
        self.outcomes = outcomes
        return self

    def add(self, share: float) -> None:
        self.late = max(0.0, self.late + share)
        self.long = max(0.0, self.long + share)


class Outcomes:
    """Of an instance."""

    count: int = 0
    served_at: int = -1  # the last; -1: nothing

    def __init__(self) -> None:
        self.late: _Memory = _Memory(MEMORY)
        self.long: _Memory = _Memory(LONG_MEMORY)
        self.open: SharedLru[AgentKey, _Open] = SharedLru(MOST_OPEN)

    def add(self, served: float, failed: float) -> None:
        self.count += 1
        self.late.add(served, failed)
        self.long.add(served, failed)

    def charge(self, share: float) -> None:
        """With more, or less, than it was at first."""
        for memory in (self.late, self.long):
            memory.failed = max(0.0, memory.failed + share)

    def worth(self, at: int) -> float:
        """What it served says the less, the longer ago that is: it may hang since."""
        return math.pow(0.5, (at - self.served_at) / WELL_US)

    def open_of(self, caller: AgentKey) -> _Open:
        found = self.open.get(caller)
        if found is None:
            found = _Open()
            self.open.put(caller[0], caller, found)
        return found.at(self.count)

    def rate_for(self, caller: AgentKey, at: int) -> float:
        """At which it fails sound calls, of late or all the time, as others' calls tell."""
        mine = self.open_of(caller)
        late = self.late.rate(RATE_CALLS, self.worth(at), mine.late)
        return max(late, self.long.rate(LONG_RATE_CALLS, 1.0, mine.long))
