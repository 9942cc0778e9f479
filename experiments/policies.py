"""`python -m experiments.policies`: every policy on the same tasks, in virtual time.

Claims: `kairos` is near the oracle, which knows all lengths, and behind no other policy in mean
end-to-end latency by more than noise, learning within the run; the bound on starvation costs it
little; and where calls fan out, counting all calls in flight beats going by the critical path.

Tasks: 120 workflows a run of the demo's applications, drawn from the recorded run on a real model
(`traces/demo-smollm2.jsonl.gz`), 20 seeds, at three rates. The fan-outs are made up of recorded
calls: a researcher's, then two to five calls at once of other agents, then a writer's; half of the
workflows are of a single call and a writer's. Two engines, with the demo's figures: four calls at
once, each step takes 15 ms and 8 ms for each of them, prompts take no time of their own. So it says
how orders compare, not how fast vLLM is. Four minutes.

Writes experiments/results/policies.jsonl and its picture, and figures of experiments/report.json.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.report import Figure
from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.baselines import true_remaining_us
from experiments.oracle import Srpt
from experiments.recordings import DEMO, read_apps
from experiments.report import RESULTS, add_figures, commit, picture, write_rows
from kairos.core import (
    SECOND,
    EngineProfile,
    MakeGuard,
    PatienceGuard,
    Policy,
    Request,
    RunMetrics,
    StepCost,
    WorkEstimates,
)
from kairos.core.scheduler.guard import NO_GUARD
from kairos.core.scheduler.policies import LeastWorkLeft
from kairos.simulate import FileCall, Workflow, World, draw_arrivals
from kairos.simulate.workload.prompt import PromptPiece
from kairos.simulate.workload.workflows import Submission

SEEDS, WORKFLOWS = 20, 120
MIX = ("qa", "qa", "qa", "rg", "rg", "cg")
RATES = {"demo": (0.7, 0.9, 1.2), "fan-out": (0.5, 0.6, 0.8)}  # workflows per second
BRANCHES = ("mathematics", "humanities", "researcher", "engineer", "router")
UNBOUNDED, CRITICAL_PATH, ORACLE = "kairos, unbounded", "kairos, critical path", "srpt"
INSTANCES = 2
STEP_US, STEP_PER_CALL_US = 15_000, 8_000
ENGINE = EngineProfile(
    name="demo",
    source="the stand-in of `kairos demo --engine sim`",
    measured=False,
    kv_tokens=100_000,  # more than four calls need
    max_num_seqs=4,
    max_num_batched_tokens=100_000,  # whole prompts, all at once
    max_model_len=100_000,
    prefix_caching=False,
    step=StepCost(
        fixed_us=STEP_US, prefill_seq_us=STEP_PER_CALL_US, decode_seq_us=STEP_PER_CALL_US
    ),
)

Task = Sequence[Sequence[FileCall]]  # stages, one after the other, of calls made together


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    commit: str
    scenario: str
    rate_per_s: float
    seed: int
    policy: str
    queued_share: float
    longest_wait_s: float
    e2e_s: dict[str, float | None]
    s_per_token: dict[str, float | None]
    apps_e2e_s: dict[str, float | None]  # means


class CriticalPath(LeastWorkLeft):
    """For comparison: by what remains from the longest call in flight on, and no other."""

    def state(self, request: Request) -> int:
        together = self._estimates.in_flight((request.tenant, request.workflow_id))
        return self._level(max(map(self._estimates.remaining_us, together)))


def demo_tasks(calls: Mapping[str, Sequence[Sequence[FileCall]]], random: Random) -> list[Task]:
    order = [MIX[n % len(MIX)] for n in range(WORKFLOWS)]
    random.shuffle(order)
    return [[[call] for call in random.choice(calls[app])] for app in order]


def fan_out_tasks(calls: Mapping[str, Sequence[Sequence[FileCall]]], random: Random) -> list[Task]:
    of_agent: dict[str, list[FileCall]] = {}
    for workflows in calls.values():
        for call in (call for workflow in workflows for call in workflow):
            of_agent.setdefault(call.agent, []).append(call)

    def draw(app: str, agent: str) -> FileCall:
        return msgspec.structs.replace(random.choice(of_agent[agent]), app=app)

    tasks: list[Task] = []
    for _ in range(WORKFLOWS):
        if random.random() < 0.5:
            agents = [random.choice(BRANCHES) for _ in range(random.randint(2, 5))]
            branches = [draw("fan", agent) for agent in agents]
            tasks.append([[draw("fan", "researcher")], branches, [draw("fan", "writer")]])
        else:
            first = draw("chain", random.choice(BRANCHES))
            tasks.append([[first], [draw("chain", "writer")]])
    return tasks


TASKS = {"demo": demo_tasks, "fan-out": fan_out_tasks}


def workflow(number: int, task: Task) -> Workflow:
    """A task as a workflow, whose calls wait for all of the stage before."""
    calls: list[FileCall] = []
    waits_for: list[tuple[int, ...]] = []
    before: tuple[int, ...] = ()
    for stage in task:
        here = tuple(range(len(calls), len(calls) + len(stage)))
        calls += [msgspec.structs.replace(call, gap_ms=None) for call in stage]
        waits_for += [before] * len(stage)
        before = here
    return Workflow(
        id=str(number),
        app=calls[0].app,
        calls=tuple(calls),
        waits_for=tuple(waits_for),
        prompts=tuple(
            (PromptPiece(f"{number}/{n}", c.prompt_tokens),) for n, c in enumerate(calls)
        ),
    )


def run(
    planned: Sequence[Submission], policy: Callable[[WorkEstimates], Policy], guard: MakeGuard
) -> RunMetrics:
    engines = {f"i{number}": ENGINE for number in range(INSTANCES)}
    placement = PLACEMENTS["least-kv"]
    world = World(planned, engines, policy, placement, guard=guard)
    world.run()
    return world.metrics


def policies(planned: Sequence[Submission]) -> dict[str, Callable[[WorkEstimates], Policy]]:
    remaining_us = true_remaining_us(planned, ENGINE)
    extra: dict[str, Callable[[WorkEstimates], Policy]]
    extra = {
        UNBOUNDED: LeastWorkLeft,
        CRITICAL_PATH: CriticalPath,
        ORACLE: lambda _: Srpt(remaining_us),
    }
    return {**POLICIES, **extra}


def measure(seeds: Sequence[int]) -> Iterator[Row]:
    """The same rows for the same seeds, but for the commit."""
    calls, at_commit = read_apps(DEMO), commit()
    for scenario, make in TASKS.items():
        for rate in RATES[scenario]:
            for seed in seeds:
                tasks = make(calls, Random(seed))  # noqa: S311 (no secret)
                planned = [
                    Submission(at_us=at, workflow=workflow(number, task))
                    for number, (task, at) in enumerate(
                        zip(tasks, draw_arrivals("azure-conv", WORKFLOWS, rate, seed), strict=True)
                    )
                ]
                for name, policy in policies(planned).items():
                    guard = NO_GUARD if name == UNBOUNDED else PatienceGuard
                    metrics = run(planned, policy, guard)
                    record: dict[str, Any] = metrics.record()
                    apps = record["apps"].items()
                    yield Row(
                        commit=at_commit,
                        scenario=scenario,
                        rate_per_s=rate,
                        seed=seed,
                        policy=name,
                        queued_share=round(record["queued_share"], 3),
                        longest_wait_s=max(row.queued_us for row in metrics.rows) / SECOND,
                        e2e_s=_short(record["e2e_s"]),
                        s_per_token=_short(record["s_per_token"]),
                        apps_e2e_s={app: round(of["e2e_s"]["mean"], 3) for app, of in apps},
                    )


def _short(spread: Mapping[str, float]) -> dict[str, float | None]:
    return {name: round(value, 4) for name, value in spread.items()}


def of(rows: Sequence[Row], scenario: str, rate: float, policy: str) -> list[Row]:
    return [r for r in rows if (r.scenario, r.rate_per_s, r.policy) == (scenario, rate, policy)]


def ratios(rows: Sequence[Row], scenario: str, rate: float, ours: str, theirs: str) -> list[float]:
    """Mean end-to-end latency, ours over theirs, by seed."""
    pairs = zip(of(rows, scenario, rate, ours), of(rows, scenario, rate, theirs), strict=True)
    return [(a.e2e_s["mean"] or 0.0) / (b.e2e_s["mean"] or inf) for a, b in pairs]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The claims, at the middle rate of each scenario; every other policy is in the detail."""
    middle = {scenario: rates[1] for scenario, rates in RATES.items()}
    claims = [
        ("demo", "kairos", "fcfs", 1.0),
        ("demo", "kairos", "wasserstein-mds", 1.0),
        ("demo", "kairos", ORACLE, None),
        ("demo", "kairos", UNBOUNDED, None),
        ("fan-out", "kairos", CRITICAL_PATH, 1.0),
        ("fan-out", "kairos", "fcfs", 1.0),
    ]
    return [
        _figure(rows, scenario, middle[scenario], ours, theirs, target)
        for scenario, ours, theirs, target in claims
    ]


def _figure(
    rows: Sequence[Row], scenario: str, rate: float, ours: str, theirs: str, target: float | None
) -> Figure:
    by_seed = ratios(rows, scenario, rate, ours, theirs)
    waits = {
        name: round(statistics.fmean(r.longest_wait_s for r in of(rows, scenario, rate, name)), 1)
        for name in (ours, theirs)
    }
    return Figure(
        name=f"virtual time, {scenario}, mean end-to-end latency, {ours} over {theirs}",
        value=round(statistics.fmean(by_seed), 4),
        unit="ratio",
        target=target,
        detail={
            "rate_per_s": rate,
            "seeds": len(by_seed),
            "lowest and highest seed": [round(min(by_seed), 4), round(max(by_seed), 4)],
            "longest wait, s, mean over seeds": waits,
        },
    )


def table(rows: Sequence[Row], scenario: str, rate: float) -> Table:
    share = statistics.fmean(row.queued_share for row in of(rows, scenario, rate, "fcfs"))
    apps = list(of(rows, scenario, rate, "fcfs")[0].apps_e2e_s)
    shown = Table(title=f"{scenario}, {rate} workflows/s, queued under fcfs {share:.0%}")
    for heading in ("policy", "e2e mean", "P99", "s/token", "P99", "longest wait", *apps, "/ fcfs"):
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in dict.fromkeys(row.policy for row in rows):
        found = of(rows, scenario, rate, policy)
        cells = [
            *(_mean(row.e2e_s[key] for row in found) for key in ("mean", "p99")),
            *(_mean(row.s_per_token[key] for row in found) for key in ("mean", "p99")),
            _mean(row.longest_wait_s for row in found),
            *(_mean(row.apps_e2e_s[app] for row in found) for app in apps),
        ]
        by_seed = ratios(rows, scenario, rate, policy, "fcfs")
        spread = f"{statistics.fmean(by_seed):.2f} [{min(by_seed):.2f}-{max(by_seed):.2f}]"
        shown.add_row(policy, *cells, spread)
    return shown


def _mean(values: Iterator[float | None]) -> str:
    return f"{statistics.fmean(value or 0.0 for value in values):.3g}"


def draw(rows: Sequence[Row]) -> None:
    """Mean end-to-end latency over that of fcfs: a dot a seed, a bar at the mean."""
    names = [name for name in dict.fromkeys(row.policy for row in rows) if name != "fcfs"]
    with picture(RESULTS / "policies", 1, len(RATES), figsize=(11, 4.5), sharey=True) as (
        figure,
        panels,
    ):
        for axes, (scenario, rates) in zip(panels, RATES.items(), strict=True):
            for n, rate in enumerate(rates):
                for place, name in enumerate(names):
                    by_seed = ratios(rows, scenario, rate, name, "fcfs")
                    at = place + (n - 1) * 0.25
                    axes.bar(at, statistics.fmean(by_seed), 0.22, color=f"C{n}", alpha=0.6)
                    axes.scatter([at] * len(by_seed), by_seed, s=3, color="black", zorder=2)
                axes.bar(0, 0, color=f"C{n}", alpha=0.6, label=f"{rate} workflows/s")
            axes.axhline(1, color="grey", linewidth=0.8)
            axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
            axes.set_title(f"{scenario}: mean end-to-end latency over fcfs", fontsize="medium")
            axes.legend(fontsize="small")
        figure.tight_layout()


def main() -> None:
    parser = argparse.ArgumentParser(description="Every policy on the same tasks, virtual time.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many [{SEEDS}]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    options = parser.parse_args()
    rows = list(measure(range(1, options.seeds + 1)))
    write_rows(RESULTS / "policies.jsonl", rows)
    found = figures(rows)
    add_figures(found)
    draw(rows)
    if options.json:
        print(msgspec.json.encode(found).decode())
        return
    console = Console(width=150)
    for scenario, rates in RATES.items():
        for rate in rates:
            console.print(table(rows, scenario, rate))


if __name__ == "__main__":
    main()
