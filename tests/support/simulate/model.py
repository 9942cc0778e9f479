"""The model of an engine and of its pool, as tests of other rooms compare with it."""

from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.engine_calls import EngineCall
from kairos.simulate.engine.host_tier import HostTier
from kairos.simulate.engines import SimulatedEngines
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import PoolOptions, functions_runner, simulate_flow
from kairos.simulate.workload import read_workflows, write_workflows
from kairos.simulate.workload.prompt import PromptPiece, length, prefix_hashes

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
    "write_workflows",
]
