"""`python -m experiments.hindsight WORKLOAD LOAD [SEED]`: what it costs to know no more than this.

Under a load that lasts no longer than its longest workflows, short ones end first, so what has
ended says too little of what is left; and once only long ones are open, what ends says too much,
and looks like agents that have changed. Beside first come, first served, three runs of the default
order: as it is; without the test for change; and by what the whole of a run with another seed
teaches without that test, known from the beginning and learnt no more. Two minutes.

It is why open workflows are learnt from as well (`kairos/core/orchestrator/open_workflows.py`).
"""

import sys
from collections.abc import Iterable
from unittest.mock import patch

from rich.console import Console

from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.baselines import DEFAULT
from experiments.rates import rates
from experiments.workloads import WORKLOADS
from kairos.core import Observer, ProfilesLearnt, Record
from kairos.core.orchestrator.window import Window
from kairos.simulate import World

PLACEMENT = "least-kv"  # so that order alone differs
ORDERLESS = "fcfs"


class Informed(World):
    """Begins with what is known, and learns nothing."""

    def know(self, learnt: Iterable[ProfilesLearnt]) -> None:
        for each in learnt:
            self._runtime.feed(each)
        self.learner.collect_changes = lambda **_: None  # type: ignore[method-assign]


def world(
    workload: str, load: str, seed: int, policy: str = DEFAULT, *observers: Observer
) -> Informed:
    """Nothing has happened in it yet."""
    made, at = WORKLOADS[workload], rates()[workload][load]
    planned = made.submissions(at.rate_per_s, at.workflows, seed)
    return Informed(
        planned,
        made.instances(),
        POLICIES[policy],
        PLACEMENTS[PLACEMENT],
        observers=observers,
    )


def ran(made: World) -> float:
    """Mean end-to-end latency, in seconds."""
    made.run()
    mean: float = made.metrics.record()["e2e_s"]["mean"]
    return mean


def learnt(workload: str, load: str, seed: int) -> list[ProfilesLearnt]:
    """All that is published during a run, and what is left to be at its end."""
    published: list[ProfilesLearnt] = []

    def see(record: Record) -> None:
        if isinstance(record.event, ProfilesLearnt):
            published.append(record.event)

    made = world(workload, load, seed, DEFAULT, see)
    made.run()
    rest = made.learner.collect_changes(whole=True)
    return published if rest is None else [*published, made.learner.compute(rest)]


def main() -> None:
    workload, load, *rest = sys.argv[1:]
    seed = int(rest[0]) if rest else 1
    out = Console(highlight=False)
    orderless_s = ran(world(workload, load, seed, ORDERLESS))
    out.print(f"{workload}, {load} load, mean end to end: {ORDERLESS} {orderless_s:.1f} s")

    def tell(what: str, mean_s: float) -> None:
        out.print(f"{DEFAULT}, {what}: {mean_s:.1f} s, {mean_s / orderless_s - 1:+.1%}")

    tell("as it is", ran(world(workload, load, seed)))
    with patch.object(Window, "_forget_before_change", lambda _: False):
        tell("without the test for change", ran(world(workload, load, seed)))
        known = learnt(workload, load, seed + 1)
    informed = world(workload, load, seed)
    informed.know(known)
    tell("all known from the beginning", ran(informed))


if __name__ == "__main__":
    main()
