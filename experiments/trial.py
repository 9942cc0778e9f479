"""Asks every policy for its keys of pending requests, and says how many pairs it has right.

Half of each application's recorded workflows are told to the orchestrator, fact by fact, as a
running Kairos tells them; what it publishes goes to the policies. Then every call of the other half
is asked its key, at the moment it arrives in its workflow, and all keys are compared as if all
those calls were waiting at once (`experiments/pairs.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np

from experiments.baseline_policies import POLICIES
from experiments.oracle import Srpt
from experiments.pairs import accuracy, places
from experiments.playing import Played, facts, play, request_id
from experiments.recordings import Apps, Workflow, halves
from experiments.references import Seen, all_features, by_agent_and_step, see
from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    Learner,
    Orchestrator,
    PlanDeclared,
    Policy,
    ProfilesLearnt,
    Record,
    Request,
    WorkEstimates,
    WorkflowEnded,
)
from kairos.core.scheduler.policies import Key

CALLS_PER_APP = 1_600
DEMO_APPS = ("qa", "rg", "cg")
DEMO_MIX, MIX = "demo mix", "mix"
TABLE, BOUND, ORACLE = "agent and step", "all features", "srpt"
_PENDING_US = 3_600 * SECOND  # over which the pending requests seem to have come


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One order in one scenario. Accuracies are shares, 0 to 1; None where there is no pair."""

    scenario: str
    order: str  # a policy, or a reference
    seed: int
    calls: int  # pending together
    different_agents: float | None  # the paper's figure
    all_pairs: float | None  # those of one agent included


class Prepared(NamedTuple):
    played: Played
    seen: list[Seen]


@cache
def prepared(workflow: Workflow) -> Prepared:
    played = play(workflow)
    return Prepared(played, see(played))


def scenarios(apps: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """The applications of each scenario."""
    alone = {app: (app,) for app in apps}
    demo = {DEMO_MIX: DEMO_APPS} if set(DEMO_APPS) <= set(apps) else {}
    return alone | demo | {MIX: tuple(apps)}


def measure(apps: Apps, seeds: Sequence[int], calls_per_app: int = CALLS_PER_APP) -> Iterator[Row]:
    """The same rows for the same arguments.

    Of each application at most so many calls are pending, chosen by the seed, and in a mix as many
    of each as of the one that has the fewest.
    """
    for seed in seeds:
        split = {app: halves(workflows, seed) for app, workflows in apps.items()}
        for scenario, names in scenarios(apps).items():
            random = Random(f"{scenario} {seed}")  # noqa: S311  (no secret)
            learnt = [prepared(each) for name in names for each in split[name][0]]
            random.shuffle(learnt)
            tested = {name: [prepared(each) for each in split[name][1]] for name in names}
            pending = choose(tested, calls_per_app, random)
            seen = [
                each
                for workflows in tested.values()
                for workflow in workflows
                for each in workflow.seen
                if request_id(each.call) in pending
            ]
            played = [each.played for workflows in tested.values() for each in workflows]
            orders = policy_orders([each.played for each in learnt], played, seen, random)
            orders |= reference_orders([each for one in learnt for each in one.seen], seen, seed)
            yield from judge(scenario, seed, orders, seen)


def choose(
    tested: Mapping[str, Sequence[Prepared]], calls_per_app: int, random: Random
) -> set[str]:
    """The ids of the requests that are pending."""
    ids = {
        name: [request_id(each.call) for workflow in workflows for each in workflow.seen]
        for name, workflows in tested.items()
    }
    count = min(calls_per_app, *map(len, ids.values()))
    return {each for known in ids.values() for each in random.sample(known, count)}


def learnt_from(workflows: Sequence[Played]) -> Iterator[ProfilesLearnt]:
    """All that is published while these workflows are served, one after the other."""
    learner = Learner(Orchestrator())
    now = 0
    for played in workflows:
        for at, event in facts(played, start_at=now):
            now = at
            if isinstance(event, Arrived):
                learner.observe(Record(at, event, (Dispatch(event.request.id, "engine"),)))
            else:
                learner.observe(Record(at, event))
        published = learner.step()
        if published is not None:
            yield published


def policy_orders(
    learnt: Sequence[Played],
    tested: Sequence[Played],
    seen: Sequence[Seen],
    random: Random,
    plans: Sequence[PlanDeclared] = (),
) -> dict[str, list[Key]]:
    """Each policy's keys of the pending requests, by what it has learnt of other workflows, and by
    the plans that were declared.

    A request is asked for when it arrives in its workflow, but as if it had come at a random
    instant of a workflow begun at a random instant: nothing tells who of those that wait was first.
    """
    estimates = _estimates(learnt, plans)
    policies: dict[str, Policy] = {name: make(estimates) for name, make in POLICIES.items()}
    policies[ORACLE] = Srpt({request_id(each.call): each.remaining_us for each in seen})
    pending = {request_id(each.call) for each in seen}
    keys: dict[str, dict[str, Key]] = {name: {} for name in policies}

    def ask(request: Request, began_at: int) -> None:
        asked = msgspec.structs.replace(
            request,
            workflow_started_at=began_at,
            arrived_at=_PENDING_US + random.randrange(_PENDING_US),
        )
        for name, policy in policies.items():
            keys[name][request.id] = policy.key(asked, policy.state(asked))

    now = 0
    for played in tested:
        began_at = random.randrange(_PENDING_US)
        for at, event in facts(played, start_at=now):
            now = at
            match event:
                case Arrived(request):
                    estimates.add_call(request, at)
                    if request.id in pending:
                        ask(request, began_at)
                    estimates.note_dispatch(request.id, at)
                case Finished(request_id=id, completion_tokens=tokens):
                    estimates.remove_call(id, at, tokens)
                case WorkflowEnded(tenant, workflow_id):
                    estimates.close_workflow((tenant, workflow_id))
    return {name: [of[request_id(each.call)] for each in seen] for name, of in keys.items()}


def _estimates(learnt: Sequence[Played], plans: Sequence[PlanDeclared]) -> WorkEstimates:
    estimates = WorkEstimates()
    for published in learnt_from(learnt):
        estimates.learn(published)
    for plan in plans:
        estimates.declare(plan)
    return estimates


def reference_orders(
    learnt: Sequence[Seen], seen: Sequence[Seen], seed: int
) -> dict[str, list[Key]]:
    return {
        TABLE: [(each,) for each in by_agent_and_step(learnt, seen)],
        BOUND: [(each,) for each in all_features(learnt, seen, seed)],
    }


def judge(
    scenario: str, seed: int, orders: Mapping[str, Sequence[Key]], seen: Sequence[Seen]
) -> Iterator[Row]:
    truth = np.array([each.remaining_us for each in seen])
    workflow = places([(each.call.app, each.call.workflow_id) for each in seen])
    agent = places([(each.call.app, each.call.agent) for each in seen])
    for order, keys in orders.items():
        place = places(keys)
        yield Row(
            scenario=scenario,
            order=order,
            seed=seed,
            calls=len(seen),
            different_agents=accuracy(place, truth, workflow, agent),
            all_pairs=accuracy(place, truth, workflow, None),
        )
