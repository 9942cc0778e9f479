"""Runs of plans: the same workflows under one policy or two, over one seed or many.

Slowdown is measured against the durations of workflows with an engine to themselves.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from typing import Any

import msgspec

from kairos.core import (
    SECOND,
    EngineProfile,
    Observer,
    WorkflowKey,
    compare_metrics,
    difference_interval,
    mean_interval,
    placement_named,
    policy_named,
)
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.plan import SimulationPlan, holds
from kairos.simulate.users import TENANT, engine_call
from kairos.simulate.workload.arrival_process import measure_burstiness
from kairos.simulate.workload.prompt import PromptPiece
from kairos.simulate.workload.workflows import Course, Submission, Workflow
from kairos.simulate.world import World

Record = dict[str, Any]
_SPREADS = ("e2e_s", "s_per_token", "ttft_s")


class Simulation:
    """Plans by seed, each run under every policy.

    `run` it once; `results` has the finished runs, also after an interruption.
    """

    def __init__(
        self,
        plan: Callable[[int], SimulationPlan],
        seeds: Sequence[int],
        policies: Sequence[str],
        placement: str,
        *,
        on_second: Callable[["Simulation"], None] = lambda _: None,
    ) -> None:
        """Prepare to run. `on_second`: see `World`."""
        self.seeds, self.policies = seeds, policies
        self.results: dict[str, list[Record]] = {policy: [] for policy in policies}
        self.workflows = 0  # of the run under way
        self.world: World | None = None  # the run under way
        self.is_interrupted = False
        self.is_broken_off = False  # the first run did not come to its end
        self._plan, self._placement = plan, placement
        self._on_second = on_second

    def run(self, log: Observer | None = None) -> None:
        """Run the simulations. `log` receives the records of the first run alone.

        Raises:
            SetupError: A run is impossible.
        """
        for seed in self.seeds:
            plan = self._plan(seed)
            self.workflows = len(plan.submissions)
            alone = alone_by_key(plan, self._not_interrupted)
            for policy in self.policies:
                if self.is_interrupted:
                    return
                self._run(plan, policy, alone, () if log is None else (log,))
                log = None

    def interrupt(self) -> None:
        """Stop the present run, and start no other. May be called by a signal handler.

        If no run is complete, the ended workflows of the stopped one count.
        """
        self.is_interrupted = True
        if self.world is not None:
            self.world.clock.stop()

    def _not_interrupted(self, _: Submission) -> bool:
        return not self.is_interrupted

    @property
    def done(self) -> int:
        """Runs that count."""
        return sum(map(len, self.results.values()))

    def summarise(self) -> Record:
        """Return the record of one run, or the comparison of two policies.

        Over several seeds these are means, with 95 % intervals over the seeds of all figures
        (`intervals`) and, for two policies, the spreads of the first minus the second, seed by seed
        (`difference`). An interrupted simulation counts the seeds whose runs are all complete, or
        the first run.
        """
        results = {policy: found for policy, found in self.results.items() if found}
        runs = min(map(len, results.values()))
        results = {policy: found[:runs] for policy, found in results.items()}
        means = {policy: averaged(found) for policy, found in results.items()}
        compared = len(self.policies) > 1
        record = compare_metrics(means) if compared else next(iter(means.values()))
        if runs == 1:  # of which there is no interval
            return record
        seeds = list(self.seeds[:runs])
        by_policy = {policy: _intervals(found) for policy, found in results.items()}
        if not compared:
            return {**record, "seeds": seeds, "intervals": next(iter(by_policy.values()))}
        difference = _differences(*results.values())
        return {**record, "seeds": seeds, "intervals": by_policy, "difference": difference}

    def _run(
        self,
        plan: SimulationPlan,
        policy: str,
        alone: dict[WorkflowKey, int],
        observers: tuple[Observer, ...],
    ) -> None:
        world = self.world = World(
            plan.submissions,
            plan.instances,
            policy_named(policy),
            placement_named(self._placement),
            happenings=plan.happenings,
            observers=observers,
            on_second=lambda _: self._on_second(self),
        )
        if not self.is_interrupted:  # while the world was made
            world.run()
        record = record_of(world, plan, alone)
        self.is_broken_off = world.users.left > 0 and not self.done
        if not world.users.left or (self.is_broken_off and record["workflows"]):
            self.results[policy].append(record)


def alone_by_key(
    plan: SimulationPlan, go_on: Callable[[Submission], bool] = lambda _: True
) -> dict[WorkflowKey, int]:
    """Return each workflow's duration with the plan's largest engine to itself.

    `go_on` is called before each; the first false result ends the list.
    """
    largest = max(plan.instances.values(), key=holds)
    found = alone_us((each.workflow for each in takewhile(go_on, plan.submissions)), largest)
    return {(TENANT, workflow_id): us for workflow_id, us in found.items()}


def record_of(world: World, plan: SimulationPlan, alone: dict[WorkflowKey, int]) -> Record:
    """Return the metrics of a run, with further figures.

    They are failed workflows, retried calls, the duration in virtual time, and the burstiness of
    the arrivals. An interrupted run counts only what had ended.
    """
    world.metrics.drop_open()
    failed = {(TENANT, workflow_id) for workflow_id in world.users.failed}
    return {
        **world.metrics.record(alone, failed),
        "failed": len(failed),
        "retries": world.users.retries,
        "simulated_s": world.clock.now() / SECOND,
        "arrivals": measure_burstiness([each.at_us for each in plan.submissions], plan.time_scale),
    }


def averaged(records: Sequence[Record]) -> Record:
    """The mean of each figure over the records that have it; None where none has."""
    return _combined(records, _mean)


def _mean(values: list[float]) -> float:
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def _intervals(records: Sequence[Record]) -> Record:
    return _combined(records, lambda values: msgspec.to_builtins(mean_interval(values)))


def _differences(first: Sequence[Record], second: Sequence[Record]) -> Record:
    found: Record = {
        name: {
            key: _difference([r[name][key] for r in first], [r[name][key] for r in second])
            for key in first[0][name]
        }
        for name in _SPREADS
    }
    if "apps" in first[0]:
        both = [app for app in first[0]["apps"] if all(app in r["apps"] for r in [*first, *second])]
        found["apps"] = {
            app: _differences([r["apps"][app] for r in first], [r["apps"][app] for r in second])
            for app in both
        }
    return found


def _difference(first: list[float | None], second: list[float | None]) -> Record | None:
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    found = difference_interval([a for a, _ in pairs], [b for _, b in pairs])
    return None if found is None else msgspec.to_builtins(found)


def _combined(records: Sequence[Record], combine: Callable[[list[float]], Any]) -> Record:
    """Figure by figure; what only some of the records have (an app) is combined over those."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: _figure([r[name] for r in records if name in r], combine) for name in names}


def _figure(values: Sequence[Any], combine: Callable[[list[float]], Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return _combined(known, combine) if isinstance(known[0], dict) else combine(known)


def alone_us(workflows: Iterable[Workflow], profile: EngineProfile) -> dict[str, int]:
    """Return the duration of each workflow by id, on one engine without load or cached prompts.

    It includes gaps of tools and users, but no queue. One engine serves them one after the other,
    and the names of their prompts' pieces are made unique to each, so that none finds what another
    left in the cache.
    """
    engine = ModelledEngine(profile)
    now = 0
    took: dict[str, int] = {}
    for workflow in workflows:
        ended_at = _run(engine, Course(_private(workflow)), now)
        took[workflow.id] = ended_at - now
        now = ended_at
    return took


def _run(engine: ModelledEngine, course: Course, now: int) -> int:
    """Returns when the workflow has ended."""
    to_make: list[tuple[int, int]] = []  # when, and the position of the call

    def release(positions: list[int]) -> None:
        for position in positions:
            heappush(to_make, (now + course.gap_us(position), position))

    release(course.first_calls())
    while not course.is_done:
        seen_at = engine.next_at()
        if to_make and (seen_at is None or to_make[0][0] <= seen_at):
            now, position = heappop(to_make)
            engine.add(engine_call(course.workflow, position, str(position)), now)
            continue
        assert seen_at is not None
        now = seen_at
        for each in engine.advance(seen_at):
            if each.what == "finished":
                release(course.finish_call(int(each.call_id)))
    return now


def _private(workflow: Workflow) -> Workflow:
    prompts = tuple(
        tuple(PromptPiece(f"{workflow.id} {piece.name}", piece.tokens) for piece in prompt)
        for prompt in workflow.prompts
    )
    return msgspec.structs.replace(workflow, prompts=prompts)
