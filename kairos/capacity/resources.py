"""CPU cores, memory, disk, network and power that a pool needs.

An engine has the requests of `kairos plan-hardware --deploy`: cores and memory of its host, disk
for the model's weights, and in a pair the links of its devices. Tools between calls run on CPU
workers, as many as are under way at once in the mean (`lowering.py`).
"""

from collections.abc import Iterable, Mapping

import msgspec

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import GB, PRECISIONS, Link, ModelShape
from kairos.capacity.serving import Phases

ENGINE_CORES, ENGINE_MEMORY_GIB = 4, 16  # that an engine asks of its host


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Needs of one tool while it runs."""

    cores: float = 1.0
    memory_gib: float = 1.0


def engine_needs(
    rates: EngineRates, model: ModelShape, precision: str, phases: Phases, link: Link
) -> dict[str, float]:
    """Return the needs of an instance, without its devices."""
    pair = phases is not Phases.BOTH
    return {
        "cores": float(ENGINE_CORES),
        "memory": float(ENGINE_MEMORY_GIB),
        "disk": model.weights * PRECISIONS[precision] / GB,
        "network": link.gbit_s * rates.devices if pair else 0.0,
    }


def worker_needs(at_once: float, worker: Worker) -> dict[str, float]:
    """Return the total needs of tools."""
    return {"cores": at_once * worker.cores, "memory": at_once * worker.memory_gib}


def price(needs: Mapping[str, float], usd_per_hour: Mapping[str, float]) -> float:
    """Return USD an hour; resources without a price are free."""
    return sum(amount * usd_per_hour.get(name, 0.0) for name, amount in needs.items())


def total(parts: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the sum of counts times needs."""
    found: dict[str, float] = {}
    for count, needs in parts:
        for name, amount in needs.items():
            found[name] = found.get(name, 0.0) + count * amount
    return found
