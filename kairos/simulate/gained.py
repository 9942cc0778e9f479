"""Gains by Kairos: the workflows of a log's last hour, simulated under other policies.

The same workflows arrive at the same instants, and agents and tools take as long between calls as
they did. The first simulation uses the policy that served them: its deviation from what really
happened measures the model's error. Then others follow. Simulations are compared only with each
other, so errors of the model that affect both cancel out.

Differences to reality: a policy begins without learnt profiles; workflows that had begun before, or
have not ended, and failed calls are left out, with their load (`share` says what remains); all
workflows count as one tenant's. If engines serve different models, only the model with the most
calls is simulated. Of a large log only its end is read (`RecentLog`), so memory is bounded.

The interval is from a bootstrap over stretches of time (`confidence.py`), since workflows that wait
for the same engines are not independent of each other.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from kairos.core import (
    SECOND,
    Arrived,
    CallRow,
    CallTracker,
    Instance,
    InstanceJoined,
    InstanceLeft,
    Interval,
    PolicyChosen,
    Record,
    SetupError,
    WorkflowKey,
    percentile,
    placement_named,
    policy_named,
    ratio_interval,
    workflow_key,
)
from kairos.gateway import Gained, Predicted, Trust, Verdict, WorkflowTimes
from kairos.observe import read_limits, read_recent
from kairos.simulate.export import has_length, workflow_calls
from kairos.simulate.logged_engines import LoggedEngines, logged_engines
from kairos.simulate.users import TENANT
from kairos.simulate.workload.workflows import Submission, workflow
from kairos.simulate.world import World, WorldEvent


class Decided(msgspec.Struct, frozen=True):
    """A policy and a placement."""

    policy: str
    placement: str


# What is asked about beside the policy that served; where it is one of them, Kairos's own instead.
BASELINES = (Decided("fcfs", "round-robin"), Decided("fcfs", "least-kv"))

KAIROS = Decided("kairos", "kairos")

FEWEST_WORKFLOWS = 10

STRETCHES = 20  # of time, that the bootstrap draws from

MOST_CALLS = 20_000

_GOOD, _FAIR = 0.1, 0.25  # of the mean

Tell = Callable[[float], None]  # the share that is done


def others_of(served: Decided) -> list[Decided]:
    """The baselines, and the order of arrival alone, with the placement that served."""
    asked = [*BASELINES, Decided("fcfs", served.placement)]
    if served in asked:
        asked.insert(0, KAIROS)
    return [each for each in dict.fromkeys(asked) if each != served]


def measure_gain(
    directory: Path,
    since_at: int,
    policy: str,
    placement: str,
    tell: Tell,
    others: Sequence[Decided] | None = None,
) -> Gained:
    """Simulate the log under the policy that served and others, and compare them.

    `since_at`: µs since the epoch. `tell` is called with the share that is done. `others`: what to
    compare with; None: the baselines, see `others_of`.

    Raises:
        SetupError: The log is missing, or has too little in it.
        InvalidFile: A line of it is not a record.
    """
    served = Decided(policy, placement)
    others = others_of(served) if others is None else others
    log = RecentLog(directory, since_at)
    instances = of_one_model(log)
    whole = {
        key: rows
        for key, rows in log.whole_workflows().items()
        if all(row.instance_id in instances for row in rows)
    }
    if len(whole) < FEWEST_WORKFLOWS:
        raise SetupError(
            f"{len(whole)} workflows began and ended in this time, with all calls answered, and it "
            f"takes {FEWEST_WORKFLOWS}: ask again later, or of a longer time"
        )
    answered = [row for row in log.rows if has_length(row) and row.instance_id in instances]
    longest = max((r.prompt_tokens or 0) + (r.completion_tokens or 0) for r in answered)
    engines = logged_engines(instances, answered, longest)
    question = Counterfactual(log, whole, engines)
    asked = [served, *others]
    runs = [
        question.run(decided, _part_of(tell, number, len(asked)))
        for number, decided in enumerate(asked)
    ]
    return _told(log, question, engines, asked, runs, answered)


def _part_of(tell: Tell, number: int, of: int) -> Tell:
    return lambda share: tell((number + share) / of)


class InstanceChange(msgspec.Struct, frozen=True):
    at: int
    what: Literal["join", "leave"]
    instance_id: str


class RecentLog:
    """Contents of a log from `since_at` (µs) on, with the last `most_calls` ended calls.

    From the instant `begins_at` on all calls are included, under one policy.

    Raises:
        SetupError: The log is missing.
        InvalidFile: A line of it is not a record.
    """

    def __init__(self, directory: Path, since_at: int, most_calls: int = MOST_CALLS) -> None:
        if not directory.is_dir():
            raise SetupError(f"there is no directory {directory}")
        self.rows: deque[CallRow] = deque()
        self.begins_at, self.ends_at = since_at, -1
        self.limits: dict[str, Instance] = {each.id: each for each in read_limits(directory)}
        self.at_first: set[str] = set()  # instances that were there when it begins
        self.changes: list[InstanceChange] = []
        self._told: dict[str, str] = {}  # of each instance, what happened last
        self._most = most_calls
        self._in_flight: Counter[WorkflowKey] = Counter()
        self._tracker = CallTracker()
        for record in read_recent(directory, since_at, (InstanceJoined, InstanceLeft)):
            self._add_record(record)
        if self.ends_at < 0:
            raise SetupError(f"the log in {directory} says nothing of that time")
        self._find_first()

    def _add_record(self, record: Record) -> None:
        event = record.event
        if type(event) is InstanceJoined:
            self.limits[event.instance.id] = event.instance
            self._note_change(record.at, "join", event.instance.id)
        elif type(event) is InstanceLeft:
            self._note_change(record.at, "leave", event.instance_id)
        elif type(event) is PolicyChosen:
            self.begins_at = max(self.begins_at, record.at)
        if record.at < self.begins_at:
            return
        self.ends_at = max(self.ends_at, record.at)
        if type(event) is Arrived and self._tracker.row(event.request.id) is None:
            self._in_flight[workflow_key(event.request)] += 1
        for row in self._tracker.observe(record):
            self._in_flight[workflow_key(row.request)] -= 1
            self.rows.append(row)
            if len(self.rows) > self._most:
                self.begins_at = max(self.begins_at, self.rows.popleft().ended_at or 0)

    def _note_change(self, at: int, what: Literal["join", "leave"], instance_id: str) -> None:
        """Note a change of an instance. Updated limits are not a change."""
        if self._told.get(instance_id) != what:
            self._told[instance_id] = what
            self.changes.append(InstanceChange(at, what, instance_id))

    def _find_first(self) -> None:
        """Determine the instances present at the beginning.

        They include instances that served, but about which the log says nothing, or first that they
        left.
        """
        first = {each.instance_id: each.what for each in reversed(self.changes)}
        served = {row.instance_id for row in self.rows}
        here = {name for name in self.limits if first.get(name) == "leave" or name in served}
        here -= {name for name, what in first.items() if what == "join"}
        for each in self.changes:
            if each.at <= self.begins_at:
                here = (
                    here | {each.instance_id} if each.what == "join" else here - {each.instance_id}
                )
        self.at_first = here
        self.changes = [each for each in self.changes if each.at > self.begins_at]

    def whole_workflows(self) -> dict[WorkflowKey, list[CallRow]]:
        """Return the workflows that began and ended in this time, with all calls answered."""
        found: dict[WorkflowKey, list[CallRow]] = {}
        for row in self.rows:
            found.setdefault(workflow_key(row.request), []).append(row)
        return {key: rows for key, rows in found.items() if self._is_whole(key, rows)}

    def _is_whole(self, key: WorkflowKey, rows: list[CallRow]) -> bool:
        began_at = min(row.request.workflow_started_at for row in rows)
        return (
            began_at >= self.begins_at and not self._in_flight[key] and all(map(has_length, rows))
        )


class Counterfactual:
    """Workflows of a log on the model of its engines, under one policy after the other."""

    def __init__(
        self, log: RecentLog, whole: dict[WorkflowKey, list[CallRow]], engines: LoggedEngines
    ) -> None:
        began = {
            key: min(row.request.workflow_started_at for row in rows) for key, rows in whole.items()
        }
        self.keys = sorted(whole, key=lambda key: (began[key], key))
        self.rows = whole
        first_at = began[self.keys[0]]
        self.actual_us = [
            max(row.ended_at or 0 for row in whole[key]) - began[key] for key in self.keys
        ]
        self._profiles = engines.profiles
        self._submissions = []
        for number, key in enumerate(self.keys):
            # Named by their numbers: tenants may have the same ids.
            named = [
                msgspec.structs.replace(call, workflow_id=str(number))
                for call in workflow_calls(whole[key])
            ]
            self._submissions.append(
                Submission(at_us=began[key] - first_at, workflow=workflow(named))
            )
        self._happenings = _happenings(log, engines, first_at)

    def run(self, decided: Decided, tell: Callable[[float], None]) -> list[float]:
        """Return how long each workflow takes, in s, in the order of `keys`."""
        total = len(self._submissions)
        world = World(
            self._submissions,
            self._profiles,
            policy_named(decided.policy),
            placement_named(decided.placement),
            happenings=self._happenings,
            on_second=lambda world: tell(1 - world.users.left / total),
        )
        world.run()
        ended = world.metrics.ended
        return [
            (ended[TENANT, each.workflow.id] - each.at_us) / SECOND
            if (TENANT, each.workflow.id) in ended and each.workflow.id not in world.users.failed
            else nan
            for each in self._submissions
        ]


def of_one_model(log: RecentLog) -> dict[str, Instance]:
    """The instances that serve what most calls were served by. Raises SetupError: no call ended."""
    calls = Counter(row.instance_id for row in log.rows)
    there = log.at_first | {each.instance_id for each in log.changes} | calls.keys()
    known = [each for each in log.limits.values() if each.id in there]
    served: Counter[tuple[str, ...]] = Counter()
    for each in known:
        served[each.models] += calls[each.id]
    if not served.total():
        raise SetupError("no call ended in this time: ask again once some have")
    models = served.most_common(1)[0][0]
    return {each.id: each for each in known if each.models == models}


def _happenings(log: RecentLog, engines: LoggedEngines, first_at: int) -> list[WorldEvent]:
    """Instances that come and go. One that is not there at first joins."""
    return [
        WorldEvent(at_us=max(0, each.at - first_at), what=each.what, instance_id=each.instance_id)
        for each in log.changes
        if each.instance_id in engines.profiles
    ]


def _told(
    log: RecentLog,
    question: Counterfactual,
    engines: LoggedEngines,
    decided: Sequence[Decided],
    runs: Sequence[Sequence[float]],
    answered: Sequence[CallRow],
) -> Gained:
    # Those that failed under some policy have no time that could be compared.
    well = [n for n in range(len(question.keys)) if not any(isnan(run[n]) for run in runs)]
    if len(well) < FEWEST_WORKFLOWS:
        raise SetupError("in the simulation most workflows fail, so it says nothing of these")
    ran, *others = ([run[n] for n in well] for run in runs)
    actual = [question.actual_us[n] / SECOND for n in well]
    mean_off = fmean(ran) / fmean(actual) - 1
    by_workflow = _by_workflow(question, well, actual, ran, others)
    simulated = [row for n in well for row in question.rows[question.keys[n]]]
    return Gained(
        begins_at=log.begins_at,
        ends_at=log.ends_at,
        workflows=len(well),
        calls=len(simulated),
        share=_tokens(simulated) / _tokens(answered),
        instances=len(engines.profiles),
        actual_mean_s=fmean(actual),
        actual_p95_s=percentile(sorted(actual), 95),
        ran=_predicted(decided[0], ran, None, mean_off),
        trust=_trust(mean_off),
        mean_off=mean_off,
        p95_off=percentile(sorted(ran), 95) / percentile(sorted(actual), 95) - 1,
        engines_off=engines.off,
        others=[
            _predicted(each, times, ran, mean_off)
            for each, times in zip(decided[1:], others, strict=True)
        ],
        by_workflow=by_workflow,
    )


def _tokens(rows: Sequence[CallRow]) -> int:
    return sum((row.prompt_tokens or 0) + (row.completion_tokens or 0) for row in rows)


def _trust(mean_off: float) -> Trust:
    if abs(mean_off) <= _GOOD:
        return "good"
    return "fair" if abs(mean_off) <= _FAIR else "poor"


def _predicted(
    decided: Decided, times: Sequence[float], ran: Sequence[float] | None, mean_off: float
) -> Predicted:
    """Return the result of a policy.

    `ran` has the times of the policy that served, or None for itself.
    """
    found = None if ran is None else ratio_interval(_stretches(times), _stretches(ran))
    return Predicted(
        policy=decided.policy,
        placement=decided.placement,
        mean_s=fmean(times),
        p95_s=percentile(sorted(times), 95),
        times=found,
        verdict=_verdict(found, mean_off),
    )


def _verdict(found: Interval | None, mean_off: float) -> Verdict:
    """Return whether the other policy would have been quicker."""
    if found is None or _trust(mean_off) == "poor":
        return "not known"
    if found.low <= 1 <= found.high or abs(found.mean - 1) <= abs(mean_off):
        return "no difference"
    return "quicker" if found.mean < 1 else "slower"


def _stretches(times: Sequence[float]) -> list[float]:
    """Means of equally many workflows, in the order in which they began."""
    count = min(STRETCHES, len(times) // 2)
    size = len(times) // count
    return [fmean(times[n * size : (n + 1) * size]) for n in range(count)]


def _by_workflow(
    question: Counterfactual,
    well: Sequence[int],
    actual: Sequence[float],
    ran: Sequence[float],
    others: Sequence[Sequence[float]],
) -> list[WorkflowTimes]:
    found = [
        WorkflowTimes(
            tenant=question.keys[n][0],
            id=question.keys[n][1],
            app=question.rows[question.keys[n]][0].request.app,
            actual_s=round(actual[place], 3),
            ran_s=round(ran[place], 3),
            others_s=[round(times[place], 3) for times in others],
        )
        for place, n in enumerate(well)
    ]
    if others:
        found.sort(key=lambda each: each.ran_s - each.others_s[0])
    return found
