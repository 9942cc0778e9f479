"""More work than a pool can do, and what comes of it: `python -m tests.simulation.core.overload`, a
minute."""

from random import Random
from statistics import mean
from unittest import mock

from kairos.core import StepCost
from kairos.core.admission import Admission
from tests.support.simulate import worlds

WORKFLOWS = 150
SEEDS = range(6)
SEQS, STEP_MS = 4, 20
CALLS, TOKENS, GAP_MS = (4, 16), (20, 80), (0, 4000)  # a workflow's, a call's, before its next call


def offered(seed, load):
    """Chains of calls with tools between them, so many times as many as two engines can serve."""
    dice, at, submissions = Random(seed), 0.0, []
    calls_per_ms = 2 * SEQS / (sum(TOKENS) / 2 * STEP_MS)
    for n in range(WORKFLOWS):
        calls = [
            worlds.call(
                dice.randint(*TOKENS), agent=f"a{k}", gap_ms=dice.randint(*GAP_MS) if k else 0
            )
            for k in range(dice.randint(*CALLS))
        ]
        submissions.append(worlds.submission(f"w{n}", *calls, at=int(at)))
        at += dice.expovariate(calls_per_ms * load / (sum(CALLS) / 2))
    return submissions


def ran(seed, *, load, policy, max_waiting=16):
    """The share of the workflows that finished; of the calls served, the share whose workflow did
    not; and the log."""
    engine = worlds.profile(seqs=SEQS, step=StepCost(fixed_us=STEP_MS * worlds.MS))
    made, log = worlds.ran(
        offered(seed, load), instances=[engine] * 2, policy=policy, max_waiting=max_waiting
    )
    failed = made.users.failed
    served = [row.request for row in made.metrics.rows if row.outcome == "finished"]
    wasted = sum(each.workflow_id in failed for each in served) / len(served)
    return 1 - len(failed) / WORKFLOWS, wasted, log


def without_claims():
    """As if calls of workflows under way had no claim to a place in the queue."""
    return mock.patch.object(Admission, "_may_take_a_place", return_value=False)


def show():
    for policy in ("kairos", "fcfs"):
        kept = [ran(seed, load=2, policy=policy) for seed in SEEDS]
        with without_claims():
            lost = [ran(seed, load=2, policy=policy) for seed in SEEDS]
        for name, runs in (("with", kept), ("without", lost)):
            whole, wasted = (mean(run[n] for run in runs) for n in (0, 1))
            print(f"{policy}, {name} claims: {whole:.1%} end whole, {wasted:.1%} wasted")


if __name__ == "__main__":
    show()
