"""The model of an engine and of its pool, as tests of other rooms compare with it."""

import msgspec

from kairos.core import PLACEMENTS, POLICIES
from kairos.engines import load_profile
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.engines import SimulatedEngines
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import PoolOptions, functions_runner, simulate_flow
from kairos.simulate.workload.prompt import PromptPiece, length, prefix_hashes
from kairos.simulate.workload.workflow_file import read_workflows, write_workflows

__all__ = [
    "EngineCall",
    "FlowClient",
    "HostTier",
    "ModelledEngine",
    "PoolOptions",
    "PromptPiece",
    "SimulatedEngines",
    "VirtualClock",
    "functions_runner",
    "length",
    "prefix_hashes",
    "read_workflows",
    "simulate_flow",
    "usual_pool",
    "write_workflows",
]


def usual_pool(profile, instances=2, **changed):
    """Return instances of a profile, by name and with these changes, under Kairos's own policy."""
    return PoolOptions(
        instances=instances,
        profile=msgspec.structs.replace(load_profile(profile), **changed),
        policy=POLICIES["kairos"],
        placement=PLACEMENTS["kairos"],
    )
