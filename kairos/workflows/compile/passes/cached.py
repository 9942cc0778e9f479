"""Choose the operators whose results are looked up in the cache before they are computed.

A fetch precedes every call whose result may be cached: a deterministic one. It is found by the
signature of the rendered request, so a row unchanged since an earlier run is fetched, and so is
an equal request of another flow to the same model.
"""

from collections.abc import Iterable

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import (
    Embedding,
    Generation,
    Operator,
    RegisteredCall,
    Rerank,
)

# Searching a row's own collection takes no longer than looking up the result.
_WORTH_IT = Generation | RegisteredCall | Embedding | Rerank


def cache_fetches(operators: Iterable[Operator]) -> tuple[str, ...]:
    return tuple(each.name for each in every_operator(operators) if is_kept(each))


def is_kept(operator: Operator) -> bool:
    """Return whether results are cached for later runs."""
    return isinstance(operator.params, _WORTH_IT) and operator.purity == "pure"
