"""A batch of documents beside online agents, on a pool that they do not fill.

Expected: the 99th percentile of the agents' workflows at most 1.10 times as long as without the
batch, while the batch does at least 85 % of what the pool could do beside them. In continuous
batching the two are at odds: what runs beside an agent's call makes each of its steps longer.

The agents are QA, RG and CG on four A40s with Llama-2-13B; at night one workflow a minute comes, in
the evening three, by day eighteen. The batch has more documents than can be done: 656 tokens of a
prompt in the median, of which 256 are instructions that all have, and 100 of an answer. They go as
the live gateway sends them (`experiments/batch_client.py`). What is spare: the share of the pool
that the agents leave, by the tokens that it serves when it has more of their workflows than it can
take. What the batch has of it: documents a second, over those of the batch alone.
"""

import random
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from bench.code import commit
from bench.report import Figure
from experiments.batch_client import BatchBesideUsers, BatchDocument
from experiments.claim import Study, table
from experiments.grids import around
from experiments.workloads import WORKLOADS
from kairos.core import PLACEMENTS, POLICIES, SECOND
from kairos.simulate import World
from kairos.simulate.clock import VirtualClock
from kairos.simulate.users import Feed
from kairos.simulate.workload.workflows import Submission

P99_AIM, USED_AIM = 1.10, 0.85
WORKLOAD = WORKLOADS["colocated-13b"]
LOADS = {"night": (1 / 60, 20), "evening": (1 / 20, 40), "day": (0.3, 60)}  # a second, workflows
SEEDS, QUICK_SEEDS = 5, 1
MORE_THAN_ENOUGH, ALONE, SATURATING = 20_000, 1_000, 150


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    load: str
    seed: int
    online_share: float  # of what the pool can do
    p99_s: float  # of workflows, without the batch
    beside_p99_s: float
    mean_s: float
    beside_mean_s: float
    batch_share: float  # of what the batch does alone


class Ran(msgspec.Struct):
    """What came of one simulated run."""

    e2e_s: list[float]
    tokens_at: list[tuple[int, int]]  # when calls of agents ended, and their tokens
    documents: int
    lasted_s: float


def documents(count: int, seed: int) -> list[BatchDocument]:
    chance = random.Random(seed)  # noqa: S311 - it need not be secret
    return [
        BatchDocument(
            256 + int(chance.lognormvariate(6.0, 0.5)),
            max(8, int(chance.lognormvariate(4.6, 0.5))),
            256,
        )
        for _ in range(count)
    ]


def run(given: Sequence[BatchDocument], planned: Sequence[Submission]) -> Ran:
    """To the end of the workflows; where there are none, of the documents."""
    made: list[BatchBesideUsers] = []

    def clients(clock: VirtualClock, feed: Feed) -> BatchBesideUsers:
        made.append(BatchBesideUsers(given, planned, clock, feed, to_the_end=not planned))
        return made[0]

    policy, placement = POLICIES["kairos"], PLACEMENTS["kairos"]
    world = World((), WORKLOAD.instances(), policy, placement, clients=clients)
    world.run()
    asked_at = {each.workflow.id: each.at_us for each in planned}
    ended_at: dict[str, int] = {}
    tokens_at = []
    for row in world.metrics.rows:
        workflow_id, at = row.request.workflow_id, row.ended_at or 0
        if workflow_id in asked_at:
            ended_at[workflow_id] = max(at, ended_at.get(workflow_id, 0))
            tokens_at.append((at, (row.prompt_tokens or 0) + (row.completion_tokens or 0)))
    e2e_s = [(at - asked_at[each]) / SECOND for each, at in ended_at.items()]
    return Ran(e2e_s, sorted(tokens_at), len(made[0].done), world.clock.now() / SECOND)


def measure(quick: bool) -> Iterator[BatchRow]:
    for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
        alone = run(documents(ALONE, seed), ())
        per_s = alone.documents / alone.lasted_s
        at_once = WORKLOAD.submissions(1.0, SATURATING, seed)
        saturated = run((), [replace(each, at_us=0) for each in at_once])
        for load in ("night",) if quick else LOADS:
            yield _row(load, seed, per_s, _tokens_per_s(saturated))


def _tokens_per_s(saturated: Ran) -> float:
    """Until half of them are served: then there is more than enough still."""
    all_tokens, served = sum(tokens for _, tokens in saturated.tokens_at), 0
    for at, tokens in saturated.tokens_at:
        served += tokens
        if served >= all_tokens / 2:
            return served / at * SECOND
    raise AssertionError("nothing was served")


def _row(load: str, seed: int, documents_per_s: float, tokens_per_s: float) -> BatchRow:
    rate, count = LOADS[load]
    planned = WORKLOAD.submissions(rate, count, seed)
    online = run((), planned)
    both = run(documents(MORE_THAN_ENOUGH, seed), planned)
    tokens = sum(tokens for _, tokens in online.tokens_at)
    return BatchRow(
        commit=commit(),
        load=load,
        seed=seed,
        online_share=tokens / online.lasted_s / tokens_per_s,
        p99_s=p99(online.e2e_s),
        beside_p99_s=p99(both.e2e_s),
        mean_s=sum(online.e2e_s) / len(online.e2e_s),
        beside_mean_s=sum(both.e2e_s) / len(both.e2e_s),
        batch_share=both.documents / both.lasted_s / documents_per_s,
    )


def p99(of: Sequence[float]) -> float:
    return sorted(of)[min(len(of) - 1, int(0.99 * len(of)))]


def used(row: BatchRow) -> float:
    return row.batch_share / (1 - row.online_share)


def section(rows: Sequence[BatchRow]) -> str:
    lines = []
    for load in dict.fromkeys(each.load for each in rows):
        of = [each for each in rows if each.load == load]
        p99s = around([each.beside_p99_s / each.p99_s for each in of])
        means = around([each.beside_mean_s / each.mean_s for each in of])
        shares, useds = around([each.online_share for each in of]), around([used(e) for e in of])
        lines.append(
            [
                load,
                f"{shares.mean:.0%}",
                f"{p99s.mean:.2f} [{p99s.low:.2f}, {p99s.high:.2f}]",
                f"{means.mean:.2f}",
                f"{useds.mean:.0%} [{useds.low:.0%}, {useds.high:.0%}]",
            ]
        )
    head = ["", "agents' share of the pool", "P99, times", "mean, times", "of what is spare"]
    return (
        f"Aims: P99 at most {P99_AIM:g} times as long as without the batch, and {USED_AIM:.0%} of "
        "what is spare.\n\n" + table(head, lines)
    )


def figures(rows: Sequence[BatchRow]) -> list[Figure]:
    night = [each for each in rows if each.load == "night"]
    p99s = [each.beside_p99_s / each.p99_s for each in night]
    return [
        Figure(
            name="e46 P99 of agents' workflows beside a batch, over that without, at night",
            value=sum(p99s) / len(p99s) if p99s else None,
            unit="times",
            target=P99_AIM,
            better="lower",
        ),
        Figure(
            name="e46 of what is spare, that the batch uses, at night",
            value=sum(map(used, night)) / len(night) if night else None,
            unit="share",
            target=USED_AIM,
            better="higher",
        ),
    ]


STUDY = Study(
    title="A batch beside agents",
    row=BatchRow,
    measure=measure,
    section=section,
    figures=figures,
)
