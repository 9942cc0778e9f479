"""Placement of a flow's operators on a host that switches models, by the host's file."""

from pathlib import Path

from kairos.core import SetupError
from kairos.engines import load_profile
from kairos.workflows import (
    UNKNOWN_FACTORS,
    ExplainedPlacement,
    FlowPrediction,
    FlowProfile,
    HostFile,
    OperatorWork,
    Plan,
    explain_placement,
    profiles_by_operator,
    read_host,
    work_of_flow,
)


def flow_placement(
    plan: Plan,
    prediction: FlowPrediction | None,
    path: Path,
    devices: int | None,
    known: FlowProfile | None = None,
) -> ExplainedPlacement:
    """Place a table's calls.

    `devices` overrides the number in the file; `known` is the flow's learnt profile.

    Raises:
        InvalidFile: The host's file is malformed.
        SetupError: Rows are missing, or a model or a profile.
    """
    if prediction is None:
        raise SetupError("--host places the calls of a table's rows: name it with --inputs FILE")
    host = read_host(path)
    number = devices or host.devices
    works = hosted_work(plan, prediction, host, number, known)
    return explain_placement(works, host.loads, number)


def hosted_work(
    plan: Plan,
    prediction: FlowPrediction,
    host: HostFile,
    devices: int,
    known: FlowProfile | None,
) -> list[OperatorWork]:
    """Return what operators take on a host's devices, for plans and for runs.

    Factors of the host's file take precedence over the profile's.

    Raises:
        SetupError: a model of the flow is not in the host's file.
    """
    profiles = {name: load_profile(each.profile) for name, each in host.models.items()}
    learnt = None if known is None else profiles_by_operator(known, plan)
    factors = host.cost.over(UNKNOWN_FACTORS if known is None else known.cost)
    return work_of_flow(plan, prediction, profiles, devices, factors, learnt)
