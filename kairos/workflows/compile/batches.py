"""Batch sizes of operators: the efficient batch, measured or assumed.

Teola cuts batches larger than an engine's maximum efficient batch, beyond which throughput does not
increase (its pass 2). Throughput hardly ever stops increasing, so here the efficient batch is the
smallest one with `ENOUGH` of the best throughput: larger ones gain little, and make items wait
longer.
"""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.operators import (
    Batched,
    Declaration,
    Embedding,
    Ingest,
    Operator,
    Params,
    RegisteredCall,
    Rerank,
    batch_size,
    kind_of,
)
from kairos.workflows.compile.references import with_changed

ENOUGH = 0.95  # of the best throughput
Latencies = Mapping[int, float]  # µs that a batch takes, by its items


class BatchProfile(msgspec.Struct, frozen=True):
    """Measured batches of one processor or function."""

    latency_us: dict[int, float]  # by items
    efficient: int


def efficient_size(latency_us: Latencies) -> int:
    """Return the smallest measured batch with `ENOUGH` of the best measured throughput."""
    throughput = {items: items / max(us, 1e-9) for items, us in latency_us.items()}
    best = max(throughput.values())
    return min(items for items, found in throughput.items() if found >= ENOUGH * best)


def batch_key(params: Batched) -> str:
    """Return the key under which batches of an operator are measured: its kind and its performer.

    The collection makes no difference: one place keeps them all.
    """
    match params:
        case Embedding(model=name) | Rerank(model=name) | RegisteredCall(function=name):
            return f"{kind_of(params)}:{name or ''}"
    return kind_of(params)


def with_batches(declaration: Declaration, measured: Mapping[str, int]) -> Declaration:
    """Return the flow with measured batches for operators that declare none.

    Args:
        declaration: the flow.
        measured: by `batch_key`. An operator that names no model has the only one of its kind.
    """
    if not measured:
        return declaration

    def change(operator: Operator) -> Params:
        params = operator.params
        if not isinstance(params, Batched) or params.batch is not None:
            return params
        found = _measured(params, measured) if _goes_in_batches(params) else None
        return params if found is None else msgspec.structs.replace(params, batch=found)

    return with_changed(declaration, change)


def batch_of(params: Params) -> int | None:
    """Return the batch size of an operator; None: it takes one item."""
    return batch_size(params) if isinstance(params, Batched) and _goes_in_batches(params) else None


def _goes_in_batches(params: Batched) -> bool:
    if isinstance(params, Ingest):
        return params.collection is not None
    return params.is_batched


def _measured(params: Batched, measured: Mapping[str, int]) -> int | None:
    key = batch_key(params)
    if key not in measured and key.endswith(":"):
        of_kind = [items for name, items in measured.items() if name.startswith(key)]
        return of_kind[0] if len(of_kind) == 1 else None
    return measured.get(key)
