"""Pools: kinds of calls, kinds of instances to choose from, and the pool that is chosen."""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import Link
from kairos.capacity.serving import NO_TARGETS, LatencyTargets, Phases
from kairos.core import CallShape

MOST_INSTANCES = 100_000  # of a kind


class CallKind(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of the calls of one agent."""

    name: str
    shape: CallShape
    per_s: float
    model: str = ""


class InstanceKind(msgspec.Struct, frozen=True, kw_only=True):
    """Devices with an engine on them, as offered."""

    name: str
    device: str
    phases: Phases
    rates: EngineRates
    usd_per_hour: float  # of all its devices
    kwh_per_hour: float = 0.0
    paid: str = ""  # how: bought or rented
    model: str = ""  # whose calls it serves
    kv_bytes_per_token: float = 0.0  # of the model; 0: the problem's
    most: int = MOST_INSTANCES  # that can be had
    needs: Mapping[str, float] = {}  # devices by name, and resources of `resources.py`


class PoolProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to serve, and what may serve them."""

    calls: Sequence[CallKind]
    instances: Sequence[InstanceKind]
    targets: LatencyTargets = NO_TARGETS
    kv_bytes_per_token: float = 0.0
    link: Link = Link()  # of pairs


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Instances, and which calls they serve."""

    counts: Mapping[str, int]  # of instances, by kind, without zeros
    # Kind of call -> kind of instance -> share of its calls, of answers where that decodes alone.
    routes: Mapping[str, Mapping[str, float]]
