"""How much more the pool has to do than it can, and how much of it is used: what to scale it by.

The work that waits for a model is what its waiting calls are predicted to take, one by one. The
pool makes several at once: as many as run now on the instances that serve the model, which is what
they hold where anything waits. Both together give the time in which what waits now would have been
served, by the pool as it is. Where nothing runs, calls count as made one after the other. Instances
that compute prompts for others have no calls of their own, and are not counted. Ours.
"""

from collections.abc import Mapping

import msgspec

from kairos.core.balancer import Balancer
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.model import SECOND, Instance


class ServedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model, on the instances that serve it; calls that name none run on any."""

    instances: int
    running: int  # calls there, of whatever model
    waiting_work_s: float  # that the pool would need for what waits
    busy: float  # share that is used, from 0 to 1: of sequences or of KV memory, the greater


def pool_load(balancer: Balancer) -> dict[str, ServedLoad]:
    """By model; "" are calls that name none, where any wait. O(instances + queues)."""
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
    """Of the model for which most work waits; 0 where nothing waits."""
    return max((each.waiting_work_s for each in models.values()), default=0.0)


def busiest(models: Mapping[str, ServedLoad]) -> float:
    """Of the model whose instances are used most."""
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
