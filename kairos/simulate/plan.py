"""Content of a simulation: workflows and their instants, instances, and their failures."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from kairos.core import SECOND, EngineProfile, SetupError
from kairos.engines import load_profile
from kairos.simulate.workload.arrival_process import time_scale
from kairos.simulate.workload.load import Offered
from kairos.simulate.workload.scenario import Instances, Scenario
from kairos.simulate.workload.scenario import submissions as scenario_submissions
from kairos.simulate.workload.workflows import Submission
from kairos.simulate.world import WorldEvent

INSTANCES, PROFILE = 4, "a40-llama3-8b"


class SimulationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run, without the policy and the placement."""

    submissions: Sequence[Submission]
    instances: dict[str, EngineProfile]
    happenings: Sequence[WorldEvent] = ()
    time_scale: float = 1.0  # of the arrivals: see `workload.burstiness`


Planner = Callable[[int], SimulationPlan]  # of a seed


def planner(asked: Offered, instances: int, profile_name: str) -> Planner:
    """Return the function that makes the plan of a seed.

    Raises:
        SetupError: The profile does not exist. From the function: the run is impossible; the
            message says what to change.
        InvalidFile: A file is malformed.
    """
    engine = load_profile(profile_name)
    fleet = {instance_id(number): engine for number in range(instances)}

    def plan(seed: int) -> SimulationPlan:
        submitted, scale = asked.of(seed)
        return SimulationPlan(submissions=submitted, instances=fleet, time_scale=scale)

    return _checking(plan)


def scenario_planner(scenario: Scenario) -> Planner:
    """Return the same for a scenario.

    Raises:
        SetupError: A profile or an application is unknown, or an instance has no capacity.
    """
    engines = [_limited(each) for each in scenario.instances for _ in range(each.count)]
    fleet = {instance_id(number): engine for number, engine in enumerate(engines)}
    happenings = [
        WorldEvent(
            at_us=round(event.at_s * SECOND),
            what="join" if event.what == "recover" else event.what,
            instance_id=instance_id(event.instance),
            factor=event.factor or 1.0,
        )
        for event in scenario.events
    ]
    asked = scenario.arrivals
    scale = time_scale(asked.process, asked.rate_per_s) if asked.trace is None else 1.0
    return _checking(
        lambda seed: SimulationPlan(
            submissions=scenario_submissions(scenario, seed),
            instances=fleet,
            happenings=happenings,
            time_scale=scale,
        )
    )


def instance_id(number: int) -> str:
    return f"engine-{number}"


def _limited(asked: Instances) -> EngineProfile:
    limits = {"kv_tokens": asked.kv_tokens, "max_num_seqs": asked.max_num_seqs}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    limited = replace(load_profile(asked.profile), **given)
    if limited.kv_tokens < limited.block_size:
        raise SetupError(
            f"instances: kv_tokens = {limited.kv_tokens} of {limited.name} is less than one block: "
            f"give {limited.block_size} or more"
        )
    return limited


def _checking(plan: Planner) -> Planner:
    def checked(seed: int) -> SimulationPlan:
        made = plan(seed)
        check_fits(made)
        return made

    return checked


def holds(engine: EngineProfile) -> int:
    """The longest prompt and completion together that an engine takes."""
    blocks = engine.kv_tokens // engine.block_size
    return min(blocks * engine.block_size, engine.max_model_len)


def check_fits(plan: SimulationPlan) -> None:
    """Check that each call fits an instance.

    Raises:
        SetupError: A call is too long for every instance.
    """
    largest = max(plan.instances.values(), key=holds)
    most = holds(largest)
    calls = [call for submission in plan.submissions for call in submission.workflow.calls]
    long = [call for call in calls if call.prompt_tokens + call.completion_tokens > most]
    if long:
        call = max(long, key=lambda each: each.prompt_tokens + each.completion_tokens)
        raise SetupError(
            f"{len(long)} of {len(calls)} calls are too long for every instance; call "
            f"{call.call_index} of workflow '{call.workflow_id}' ({call.app}) needs "
            f"{call.prompt_tokens} + {call.completion_tokens} = "
            f"{call.prompt_tokens + call.completion_tokens} tokens, the largest instance "
            f"({largest.name}) takes {most}: shorten the contexts of its application in proportion "
            f"with --max-context {most}"
        )
