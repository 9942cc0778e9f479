"""Which operators' results are looked for in the cache before they are computed.

A `CacheFetch` stands before every call whose result can be kept: a deterministic one. It is found
by the signature of what was rendered, so a row that did not change since an earlier run is fetched,
and so is one of another flow that asks the same of the same model.
"""

from collections.abc import Iterable

import msgspec

from kairos.plan.check import every
from kairos.plan.operators import Generation, Operator, RegisteredCall


class CacheFetch(msgspec.Struct, frozen=True):
    operator: str


def cache_fetches(operators: Iterable[Operator]) -> tuple[CacheFetch, ...]:
    return tuple(
        CacheFetch(each.name)
        for each in every(operators)
        if isinstance(each.params, Generation | RegisteredCall) and each.purity == "pure"
    )
