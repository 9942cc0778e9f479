"""Hardware plans of applications with several models, and the way to them, in simulation.

Drawn applications of two or three agents, each with a model of its own, at 30 to 80 % of one to
three instances of the model with most to do; targets are 1.2 to 2 times the quickest pool's P95.
The planned pool is simulated with Kairos's policy and placement. Then the load is doubled: the plan
for it is reached from the first pool in steps, and each pool on the way is simulated under the new
load. Expected: P95 within 20 % of the planned one, and steps within the target once today's pool
is.
"""

import random
from collections.abc import Iterator, Sequence

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.report import commit
from kairos.capacity.hardware_options import agent_names, load_catalogue, observed_calls
from kairos.capacity.hardware_plan import HardwareQuestion, plan_hardware, question_problem
from kairos.capacity.instance_kinds import HardwareOffer
from kairos.capacity.migration import plan_migration
from kairos.capacity.pool_simulation import SimulatedPool, simulate_pool
from kairos.capacity.serving import Phases, use
from kairos.simulate import FileCall, Workflow
from kairos.simulate.workload.workflows import workflow

AIM = 0.20
CASES, QUICK = 12, 1
WORKFLOWS = 60
STAYS, FEWEST, MOST = 30, 600, 3_000
DEVICES = ("a40", "a100", "h100", "gaudi3", "mi300x", "l40s")
MODELS = ("llama-3-8b", "qwen2.5-7b", "llama-2-13b", "mistral-7b")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one application."""

    commit: str
    seed: int
    models: list[str]
    pool: dict[str, int]
    target_s: float
    planned_p95_s: float
    simulated_p95_s: float
    steps: int  # pools on the way, with the last
    steps_in_time: int  # by simulation, with `AIM` beyond the target
    worst_step: float  # its simulated P95 over the target, or over today's where that is more
    step_usd: float


def drawn(seed: int) -> tuple[HardwareQuestion, list[Workflow]]:
    """An application and its question; the same for the same seed."""
    dice, known = random.Random(seed), load_catalogue()  # noqa: S311
    names = dice.sample(MODELS, dice.choice((2, 2, 3)))
    sizes = [(dice.choice((300, 900, 2500)), dice.choice((40, 200, 500))) for _ in names]
    workflows = [
        workflow(
            [
                FileCall(
                    workflow_id=f"w{number}",
                    app="drawn",
                    agent=f"a{at}",
                    upstream="user" if not at else f"a{at - 1}",
                    call_index=at,
                    prompt_tokens=round(prompt * dice.uniform(0.7, 1.3)),
                    completion_tokens=max(1, round(answer * dice.uniform(0.5, 1.5))),
                    model=names[at],
                )
                for at, (prompt, answer) in enumerate(sizes)
            ]
        )
        for number in range(WORKFLOWS)
    ]
    agents = agent_names(workflows)
    models = {name: known.model_named(model) for (_, model), name in agents.items()}
    devices = [known.accelerator_named(name) for name in dice.sample(DEVICES, 2)]
    asked = HardwareQuestion(
        workflows=observed_calls(workflows, agents),
        workflows_per_s=1.0,
        offer=HardwareOffer(
            devices=devices, model=next(iter(models.values())), models=models, most_devices=1,
            pairs=dice.random() < 0.3,
        ),
        most_kinds=2,
    )  # fmt: skip
    problem, _ = question_problem(asked)
    need = 0.0
    for call in problem.calls:
        kind = next(
            each
            for each in problem.instances
            if each.model == call.model and each.phases is Phases.BOTH
        )
        used = use(kind.rates, call.shape, Phases.BOTH)
        assert used is not None
        need = max(need, call.per_s * used.busy_s)
    per_s = dice.uniform(0.3, 0.8) * dice.randint(1, 3) / need
    asked = msgspec.structs.replace(asked, workflows_per_s=per_s)
    quickest = plan_hardware(asked).front[-1].prediction.p95_s
    target = quickest * dice.choice((1.2, 1.5, 2.0))
    return msgspec.structs.replace(asked, p95_s=target), workflows


def measured(seed: int, at_commit: str) -> Row:
    """Plan, simulate, and go on to twice the load."""
    asked, workflows = drawn(seed)
    found = plan_hardware(asked)
    problem, _ = question_problem(asked)

    def p95_s(counts: dict[str, int], per_s: float) -> float:
        pool = SimulatedPool(counts=counts, kinds=problem.instances, link=asked.link)
        count = min(max(round(STAYS * per_s * found.chosen.prediction.mean_s), FEWEST), MOST)
        return simulate_pool(pool, workflows, per_s, count).p95_s

    twice = msgspec.structs.replace(asked, workflows_per_s=2 * asked.workflows_per_s)
    moved = plan_migration(twice, plan_hardware(twice), found.chosen.pool.counts)
    bound = max(asked.p95_s, moved.today_p95_s if moved.today_p95_s < 1e9 else 0.0)
    over = [p95_s(dict(step.counts), twice.workflows_per_s) / bound for step in moved.steps
            if step.p95_s <= bound * 1.001]  # fmt: skip
    return Row(
        commit=at_commit,
        seed=seed,
        models=sorted({call.model for call in problem.calls}),
        pool=dict(found.chosen.pool.counts),
        target_s=float(f"{asked.p95_s:.4g}"),
        planned_p95_s=float(f"{found.chosen.prediction.p95_s:.5g}"),
        simulated_p95_s=float(
            f"{p95_s(dict(found.chosen.pool.counts), asked.workflows_per_s):.5g}"
        ),
        steps=len(over),
        steps_in_time=sum(each <= 1 + AIM for each in over),
        worst_step=round(max(over, default=0.0), 3),
        step_usd=round(moved.usd, 4),
    )


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for seed in range(QUICK if quick else CASES):
        yield measured(seed, at_commit)


def off(row: Row) -> float:
    """Return how far the planned P95 is from the simulated one."""
    return row.planned_p95_s / row.simulated_p95_s - 1


def section(rows: Sequence[Row]) -> str:
    good = sum(abs(off(row)) <= AIM for row in rows)
    steps, in_time = sum(row.steps for row in rows), sum(row.steps_in_time for row in rows)
    return (
        f"P95 within {AIM:.0%} of the planned one in {good} of {len(rows)} applications (worst "
        f"{max(map(off, rows), key=abs):+.0%}). Of {steps} pools on the way to twice the load that "
        f"are planned within the target, {in_time} are by simulation, with {AIM:.0%} beyond.\n\n"
        + table(
            ["models", "pool", "planned P95, s", "off", "pools on the way",
             "their worst P95 over the target", "steps, USD once"],
            (
                [
                    ", ".join(row.models),
                    ", ".join(f"{count} x {name}" for name, count in sorted(row.pool.items())),
                    f"{row.planned_p95_s:.3g}",
                    f"{off(row):+.0%}",
                    str(row.steps),
                    f"{row.worst_step:.2f}" if row.steps else "",
                    f"{row.step_usd:.2g}",
                ]
                for row in rows
            ),
        )
    )  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure(
            name="planned P95 of applications with several models",
            value=round(100 * max(abs(off(row)) for row in rows), 1),
            unit="percent off the simulated one, the worst of 12 applications",
            target=100 * AIM,
        )
    ]


STUDY = Study(
    title="Hardware plans of applications with several models, and the way to them",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
