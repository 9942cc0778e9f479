"""Gains by Kairos in the last hour, computed in a background process.

The values are the JSON of `/ui/data/gained`. The log of an hour is read and simulated several
times, which takes up to minutes. So `kairos gained --json` does it (`simulate/gained.py`), one run
at a time, on idle resources. Its result is cached for a while.
"""

import asyncio
import logging
from typing import Literal

import msgspec

from kairos.core import Interval
from kairos.gateway.page.beside import Beside, NotWorkedOut
from kairos.settings import Settings

logger = logging.getLogger(__name__)

SINCE_S = 3600
FRESH_US = 600_000_000  # how long a result counts as recent
LIMIT_S = 900.0
_SHOWN = 10  # workflows at either end

# no_log: there is no log of the last hour; idle: not requested yet, or stopped.
State = Literal["no_log", "idle", "running", "done", "failed"]

# good: within a tenth of the measured times; fair: within a quarter.
Trust = Literal["good", "fair", "poor"]
# No difference: the interval holds 1, or the difference is smaller than the model's own error.
Verdict = Literal["quicker", "slower", "no difference", "not known"]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated result of a policy. End-to-end times, s."""

    policy: str
    placement: str
    mean_s: float
    p95_s: float
    # Ratio of times to those under the policy that served; null: too few workflows.
    times: Interval | None
    verdict: Verdict


class WorkflowTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow's end-to-end times, s: measured, and simulated."""

    tenant: str
    id: str
    app: str | None
    actual_s: float
    ran_s: float  # under the policy that served
    others_s: list[float]


class Gained(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison. Instants are µs since the epoch."""

    begins_at: int
    ends_at: int
    workflows: int
    calls: int
    share: float  # of the tokens that engines took and gave in this time: what is simulated
    instances: int
    actual_mean_s: float
    actual_p95_s: float
    ran: Predicted
    trust: Trust
    mean_off: float  # the model's mean for what served, over the true one, less 1
    p95_off: float
    engines_off: float  # the median of how far the model of engines is from single calls' times
    others: list[Predicted]
    by_workflow: list[WorkflowTimes]  # most delayed first, by the first of the others


class GainsView(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    done: float  # of what runs, the share
    problem: str | None  # why it failed
    found_at: int | None  # µs since the epoch
    gained: Gained | None  # of its workflows those at either end


class WorkflowGain(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one workflow in the last comparison; null: it is not included."""

    others: list[str]  # what was asked about: policy, placement
    times: WorkflowTimes | None


class Gains:
    """Runner and cache of comparisons. `run` it in the background."""

    def __init__(self, settings: Settings) -> None:
        self._log_dir = settings.log_dir
        self.policy, self._placement = settings.policy, settings.placement  # that serve now
        self._wanted = asyncio.Event()
        self._beside = Beside(LIMIT_S)
        self._done, self._problem = 0.0, ""
        self._found: Gained | None = None
        self._found_at: int | None = None
        self._by_workflow: dict[tuple[str, str], WorkflowTimes] = {}

    def view(self) -> GainsView:
        found = self._found
        if found is not None and len(found.by_workflow) > 2 * _SHOWN:
            ends = found.by_workflow[:_SHOWN] + found.by_workflow[-_SHOWN:]
            found = msgspec.structs.replace(found, by_workflow=ends)
        return GainsView(
            state=self._state(),
            done=self._done,
            problem=self._problem or None,
            found_at=self._found_at,
            gained=found,
        )

    def _state(self) -> State:
        if self._log_dir is None:
            return "no_log"
        if self._wanted.is_set():
            return "running"
        if self._problem:
            return "failed"
        return "idle" if self._found is None else "done"

    def workflow(self, tenant: str, workflow_id: str) -> WorkflowGain:
        others = [] if self._found is None else self._found.others
        return WorkflowGain(
            others=[f"{each.policy}, {each.placement}" for each in others],
            times=self._by_workflow.get((tenant, workflow_id)),
        )

    def start(self, now: int) -> None:
        """Start a comparison, unless one is running or recent; `now` in µs."""
        is_fresh = self._found_at is not None and now < self._found_at + FRESH_US
        is_busy = self._wanted.is_set() or self._beside.pid is not None
        if self._log_dir is not None and not is_busy and not is_fresh:
            self._done, self._problem = 0.0, ""
            self._wanted.set()

    def stop(self) -> None:
        """Stop the running comparison. The last result is kept."""
        self._wanted.clear()
        self._beside.stop()

    async def run(self) -> None:
        """Run requested comparisons until cancelled. Errors are shown on the page."""
        while True:
            await self._wanted.wait()
            try:
                await self._find_out()
            except (NotWorkedOut, msgspec.MsgspecError) as error:
                if self._wanted.is_set():  # else it was stopped
                    logger.warning("cannot compute what Kairos gained: %s", error)
                    self._problem = str(error)
            self._wanted.clear()

    async def _find_out(self) -> None:
        """Run one comparison. The result is decoded in a thread: there may be 20,000 workflows."""
        assert self._log_dir is not None
        said = await self._beside.run(
            *("gained", "--json", "--progress", "--log", self._log_dir),
            *("--since", f"{SINCE_S}s"),
            *("--policy", self.policy, "--placement", self._placement),
            tell=self._progress,
        )
        found = await asyncio.to_thread(msgspec.json.decode, said, type=Gained)
        self._found, self._found_at = found, found.ends_at
        self._by_workflow = {(each.tenant, each.id): each for each in found.by_workflow}

    def _progress(self, share: float) -> None:
        self._done = share
