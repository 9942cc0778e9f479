"""A list that a model writes goes on item by item (Teola's pass 4, decoding pipelining).

An LLM call whose schema has a list, over which a `map` goes, is streamed: each item that is
finished is computed while the rest is still generated. That is trying ahead: the whole answer may
turn out to be broken, and then its items count nothing. So a body with an effect is left alone, and
one that needs what would not be computed for sure.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.plan.certainty import certain
from kairos.plan.check import every
from kairos.plan.operators import (
    Data,
    Generation,
    Input,
    MapOver,
    Operator,
    Path,
    Reference,
    StagedMap,
)
from kairos.plan.references import needs, placeholders


class PartialDecode(msgspec.Struct, frozen=True):
    """The items at `path` of what an operator answers go to these maps as they are finished, so
    many at most."""

    operator: str
    path: Path
    maps: tuple[str, ...]
    most: int


def partial_decodes(operators: Sequence[Operator]) -> tuple[PartialDecode, ...]:
    """Of operators in an order in which each follows what it needs; in bodies too."""
    free = frozenset(e.name for e in operators if isinstance(e.params, Input | Data))
    return tuple(_of_scope(operators, free))


def _of_scope(operators: Sequence[Operator], free: frozenset[str]) -> Iterator[PartialDecode]:
    """`free`: what can be had at any time, and cannot fail."""
    maps: dict[str, list[Operator]] = {}  # by what they go over
    for each in operators:
        if (over := _over(each)) is not None:
            maps.setdefault(over.operator, []).append(each)
    for each in operators:
        if each.name in maps and isinstance(each.params, Generation):
            there = free | (certain(operators, [each.name]) - {each.name})
            if early := [one for one in maps[each.name] if _may_begin(one, each, there)]:
                yield _partial(each, early)
        yield from _of_scope(each.body, free.union(placeholders(each)))


def _partial(llm: Operator, maps: Sequence[Operator]) -> PartialDecode:
    """Of maps over different lists those over the first."""
    first = _over(maps[0])
    assert first is not None
    same = [each for each in maps if _over(each) == first]
    most = max(each.params.max_items for each in same if isinstance(each.params, MapOver))
    return PartialDecode(llm.name, first.path, tuple(each.name for each in same), most)


def _over(operator: Operator) -> Reference | None:
    """What a map goes over; None: it is no map, or one over a list that is put together."""
    params = operator.params
    if isinstance(params, MapOver) and not isinstance(params, StagedMap):
        return params.over if isinstance(params.over, Reference) else None
    return None


def _may_begin(operator: Operator, llm: Operator, there: frozenset[str]) -> bool:
    """Whether a map over what the model writes may begin with some of it."""
    assert isinstance(llm.params, Generation)
    over = _over(operator)
    if over is None or operator.after or not _is_list(llm.params.schema, over.path):
        return False
    in_body = {name for each in operator.body for name in needs(each)}
    return (
        set(needs(operator)) - {llm.name} <= there
        and llm.name not in in_body
        and all(each.purity != "effect" for each in every(operator.body))
    )


def _is_list(schema: object, path: Path) -> bool:
    """Whether what keeps to a schema has a list at a path of keys."""
    for key in path:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(key, str) or not isinstance(properties, Mapping):
            return False
        schema = properties.get(key)
    return isinstance(schema, Mapping) and schema.get("type") == "array"
