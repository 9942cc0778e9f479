"""Process a list item by item while a model writes it (Teola's pass 4, decoding pipelining).

An LLM call whose schema has a list that a `map` iterates over is streamed: each finished item is
processed while the rest is still generated. So is one whose text a `partial` function parses: all
but the last part of a prefix count as finished. An `embed` of such a list of texts becomes a map.
This is speculative: the whole answer may turn out to be invalid, and then its items are discarded.
So a body with an effect is left alone, and so is one that needs values not certain to be computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.gates import certain
from kairos.workflows.compile.operators import (
    MOST_ITEMS,
    Argument,
    Data,
    Declaration,
    Embedding,
    Generation,
    Input,
    MapOver,
    Operator,
    Path,
    Reference,
    RegisteredCall,
    StagedMap,
)
from kairos.workflows.compile.passes.stages import fresh
from kairos.workflows.compile.references import needs, placeholders, with_body


class PartialDecode(msgspec.Struct, frozen=True):
    """Streamed LLM operator: its finished items at `path` go to these maps, at most `most`.

    With a `parser`, the items are the values of that function for the text, passed as `argument`.
    """

    operator: str
    path: Path
    maps: tuple[str, ...]
    most: int
    parser: str | None = None
    argument: str = ""


class _Writer(NamedTuple):
    """LLM operator, with the `partial` call that parses its text, if there is one."""

    llm: Operator
    parser: Operator | None = None

    @property
    def name(self) -> str:
        return self.llm.name if self.parser is None else self.parser.name


def itemised(declaration: Declaration) -> Declaration:
    """Return the flow with lists that a model writes embedded text by text."""
    taken = {each.name for each in every_operator(declaration.operators)}
    operators = _itemised(declaration.operators, taken)
    return msgspec.structs.replace(declaration, operators=operators)


def _itemised(operators: Sequence[Operator], taken: set[str]) -> tuple[Operator, ...]:
    writers = _writers(operators)
    found = []
    for each in operators:
        if each.body:
            found.append(with_body(each, _itemised(each.body, taken)))
        elif isinstance(each.params, Embedding) and _is_written(each, writers):
            found.append(_by_items(each, taken))
        else:
            found.append(each)
    return tuple(found)


def _is_written(embedding: Operator, writers: Mapping[str, _Writer]) -> bool:
    """Return whether a model writes the list of texts, and a failure of one fails the row."""
    texts = embedding.inputs["texts"]
    if not isinstance(texts, Reference) or embedding.on_error != "fail" or embedding.after:
        return False
    writer = writers.get(texts.operator)
    if writer is None:
        return False
    if writer.parser is not None:
        return not texts.path
    assert isinstance(writer.llm.params, Generation)
    listed = _at(writer.llm.params.schema, texts.path)
    items = listed.get("items") if _is_list(listed) and isinstance(listed, Mapping) else None
    return isinstance(items, Mapping) and items.get("type") == "string"


def _by_items(embedding: Operator, taken: set[str]) -> Operator:
    """Return a map of the same name, whose body embeds one text."""
    name = fresh(embedding.name, "item", taken)
    item: Argument = Reference(f"{embedding.name}.item")
    part = msgspec.structs.replace(embedding, name=name, inputs={"texts": item})
    return Operator(
        name=embedding.name,
        params=StagedMap(
            over=embedding.inputs["texts"],
            body=(part,),
            result=Reference(name),
            max_items=MOST_ITEMS,
            batch=None,
            declared={name: embedding.name},
        ),
    )


def _writers(operators: Sequence[Operator]) -> dict[str, _Writer]:
    """Return the writers by the operator whose value is, or has, a list that a model writes."""
    llms = {each.name: each for each in operators if isinstance(each.params, Generation)}
    found = {name: _Writer(each) for name, each in llms.items()}
    for each in operators:
        if not isinstance(each.params, RegisteredCall) or not each.params.partial or each.after:
            continue
        (text,) = each.inputs.values()
        llm = llms.get(text.operator) if isinstance(text, Reference) and not text.path else None
        if llm is not None and isinstance(llm.params, Generation) and llm.params.schema is None:
            found[each.name] = _Writer(llm, each)
    return found


def partial_decodes(operators: Sequence[Operator]) -> tuple[PartialDecode, ...]:
    """Return the streamed operators, in bodies too.

    Operators must be in an order of dependencies.
    """
    free = frozenset(e.name for e in operators if isinstance(e.params, Input | Data))
    return tuple(_of_scope(operators, free))


def _of_scope(operators: Sequence[Operator], free: frozenset[str]) -> Iterator[PartialDecode]:
    """Yield the streamed operators of a scope. `free`: values that are always there."""
    maps: dict[str, list[Operator]] = {}  # by what they go over
    for each in operators:
        if (over := _over(each)) is not None:
            maps.setdefault(over.operator, []).append(each)
    streamed: set[str] = set()
    for writer in _writers(operators).values():
        if writer.name in maps and writer.llm.name not in streamed:
            own = {writer.llm.name, writer.name}
            there = free | (certain(operators, [writer.name]) - own)
            if early := [one for one in maps[writer.name] if _may_begin(one, writer, there)]:
                streamed.add(writer.llm.name)
                yield _partial(writer, early)
    for each in operators:
        yield from _of_scope(each.body, free.union(placeholders(each)))


def _partial(writer: _Writer, maps: Sequence[Operator]) -> PartialDecode:
    """Return the streaming of a writer to maps; only maps over the same list as the first."""
    first = _over(maps[0])
    assert first is not None
    same = [each for each in maps if _over(each) == first]
    most = max(each.params.max_items for each in same if isinstance(each.params, MapOver))
    names = tuple(each.name for each in same)
    parser = writer.parser
    if parser is None:
        return PartialDecode(writer.llm.name, first.path, names, most)
    assert isinstance(parser.params, RegisteredCall)
    (argument,) = parser.inputs
    return PartialDecode(writer.llm.name, (), names, most, parser.params.function, argument)


def _over(operator: Operator) -> Reference | None:
    """Return the list that a map iterates over; None if it is not a reference, or not a map."""
    params = operator.params
    is_staged = isinstance(params, StagedMap) and params.batch is not None
    if isinstance(params, MapOver) and isinstance(params.over, Reference) and not is_staged:
        return params.over
    return None


def _may_begin(operator: Operator, writer: _Writer, there: frozenset[str]) -> bool:
    """Return whether a map over a model's list may begin before the list is whole."""
    assert isinstance(writer.llm.params, Generation)
    over = _over(operator)
    if over is None or operator.after:
        return False
    if writer.parser is not None and over.path:
        return False
    if writer.parser is None and not _is_list(_at(writer.llm.params.schema, over.path)):
        return False
    in_body = {name for each in operator.body for name in needs(each)}
    return (
        set(needs(operator)) - {writer.name} <= there
        and not in_body & {writer.name, writer.llm.name}
        and all(each.purity != "effect" for each in every_operator(operator.body))
    )


def _at(schema: object, path: Path) -> object:
    """Return the schema at a path of keys; None if it has no such part."""
    for key in path:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(key, str) or not isinstance(properties, Mapping):
            return None
        schema = properties.get(key)
    return schema


def _is_list(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "array"
