"""Which operators' results are looked for in the cache before they are computed.

A `CacheFetch` stands before every call whose result can be kept: a deterministic one. It is found
by the signature of what was rendered, so a row that did not change since an earlier run is fetched,
and so is one of another flow that asks the same of the same model.
"""

from collections.abc import Collection, Iterable

import msgspec

from kairos.workflows.compile.check import every
from kairos.workflows.compile.operators import (
    Embedding,
    Generation,
    Operator,
    RegisteredCall,
    Rerank,
)

# A search in what a row has itself takes no longer than to look for its result.
_WORTH_IT = Generation | RegisteredCall | Embedding | Rerank


class CacheFetch(msgspec.Struct, frozen=True):
    operator: str


def cache_fetches(
    operators: Iterable[Operator], staying: Collection[str] = ()
) -> tuple[CacheFetch, ...]:
    """`staying`: whose values stay where they are made."""
    kept = (each.name for each in every(operators) if is_kept(each))
    return tuple(CacheFetch(name) for name in kept if name not in staying)


def is_kept(operator: Operator) -> bool:
    """Whether its results are kept for later runs."""
    return isinstance(operator.params, _WORTH_IT) and operator.purity == "pure"
