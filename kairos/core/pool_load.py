"""Load of the pool, as input for autoscaling: waiting work, and share in use. Not in the paper.

The waiting work of a model is the predicted latency of its waiting calls, one after the other. The
pool runs several concurrently: as many as run now on the instances that serve the model, which is
all they can while calls wait. The quotient is the time in which the present pool would serve what
waits now. If nothing runs, calls count one after the other. Prefill-only instances have no calls of
their own, and do not count.
"""

from collections.abc import Mapping

import msgspec

from kairos.core.balancer import Balancer
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.model import SECOND, Instance


class ServedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one model, on the instances that serve it; calls without a model run on any."""

    instances: int
    running: int  # calls there, of any model
    waiting_work_s: float  # time the pool would need for what waits
    busy: float  # share in use, from 0 to 1, of sequences or KV memory, the greater


def load_of_pool(balancer: Balancer) -> dict[str, ServedLoad]:
    """Return the load by model; "" for waiting calls without one. O(instances + queues)."""
    ledger = balancer.ledger
    waiting_us = balancer.waiting_us()
    served = set(ledger.served.models())
    return {
        model or "": _load(
            ledger.served.serving(model), ledger, balancer.at, waiting_us.get(model, 0)
        )
        for model in sorted(served | waiting_us.keys(), key=lambda each: each or "")
    }


def most_waiting_s(models: Mapping[str, ServedLoad]) -> float:
    """Return the waiting work of the model with most; 0 if nothing waits."""
    return max((each.waiting_work_s for each in models.values()), default=0.0)


def highest_utilisation(models: Mapping[str, ServedLoad]) -> float:
    """Return the share in use of the model with the busiest instances."""
    return max((each.busy for each in models.values()), default=0.0)


def _load(serving: list[Instance], ledger: Ledger, at: int, waiting_us: int) -> ServedLoad:
    running = sum(ledger.running(each.id) for each in serving)
    used = [_used(each, ledger, at) for each in serving]
    return ServedLoad(
        instances=len(serving),
        running=running,
        waiting_work_s=waiting_us / max(1, running) / SECOND,
        busy=sum(used) / len(used) if used else 0.0,
    )


def _used(instance: Instance, ledger: Ledger, at: int) -> float:
    sequences = ledger.running(instance.id) / instance.max_num_seqs
    if not instance.kv_tokens:
        return min(1.0, sequences)
    return min(1.0, max(sequences, ledger.held_tokens(instance.id, at) / instance.kv_tokens))
