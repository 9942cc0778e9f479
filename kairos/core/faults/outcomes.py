"""Rate at which an instance fails sound calls, from its latest calls. Not in the paper."""

import math

from kairos.core.agent_key import AgentKey
from kairos.core.model import SECOND
from kairos.core.shared_lru import SharedLru

# Prior rate at which an instance fails sound calls, and its weight in calls: in the short-term and
# in the long-term rate.
RATE, RATE_CALLS, LONG_RATE_CALLS = 0.01, 1.0, 20.0
# Factor on earlier outcomes with each new one: the short term covers four calls, the long term
# fifty. The former shows that an instance broke, the latter that it fails some calls all the time.
MEMORY, LONG_MEMORY = 0.75, 0.98
WELL_US = 10 * SECOND  # time without a served call after which earlier served calls count half
MOST_OPEN = 64  # callers whose failures on one instance are counted separately


class _Memory:
    """Outcomes of an instance, with exponentially decreasing weight."""

    served: float = 0.0
    failed: float = 0.0

    def __init__(self, keeps: float) -> None:
        self.keeps = keeps

    def add(self, served: float, failed: float) -> None:
        self.served = self.keeps * self.served + served
        self.failed = self.keeps * self.failed + failed

    def rate(self, prior_calls: float, worth: float, without: float = 0.0) -> float:
        """Return the rate of failures.

        Args:
            prior_calls: weight of the prior rate, in calls.
            worth: weight of the served calls.
            without: number of failures to leave out.
        """
        failed = max(0.0, self.failed - without)
        return (failed + RATE * prior_calls) / (worth * self.served + failed + prior_calls)


class _Open:
    """Charges to an instance for one caller's calls that were served nowhere.

    They decay with the instance's outcomes; `outcomes` is the count they are valid for.
    """

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
    """Outcomes of one instance."""

    count: int = 0
    served_at: int = -1  # time of the last served call; -1: none yet

    def __init__(self) -> None:
        self.late: _Memory = _Memory(MEMORY)
        self.long: _Memory = _Memory(LONG_MEMORY)
        self.open: SharedLru[AgentKey, _Open] = SharedLru(MOST_OPEN)

    def add(self, served: float, failed: float) -> None:
        self.count += 1
        self.late.add(served, failed)
        self.long.add(served, failed)

    def charge(self, share: float) -> None:
        """Correct the charge of an earlier failure by `share`."""
        for memory in (self.late, self.long):
            memory.failed = max(0.0, memory.failed + share)

    def worth(self, at: int) -> float:
        """Return the weight of served calls, which decreases with time: it may hang since."""
        return math.pow(0.5, (at - self.served_at) / WELL_US)

    def open_of(self, caller: AgentKey) -> _Open:
        found = self.open.get(caller)
        if found is None:
            found = _Open()
            self.open.put(caller[0], caller, found)
        return found.at(self.count)

    def rate_for(self, caller: AgentKey, at: int) -> float:
        """Return the higher of the short- and long-term rates, less the caller's own failures."""
        mine = self.open_of(caller)
        late = self.late.rate(RATE_CALLS, self.worth(at), mine.late)
        return max(late, self.long.rate(LONG_RATE_CALLS, 1.0, mine.long))
