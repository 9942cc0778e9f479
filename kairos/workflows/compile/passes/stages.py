"""Embed and ingest texts in stages (Teola's pass 2, stage decomposition).

Texts that are embedded, and then added to a collection, are processed batch by batch, with the
batch size of the embedding engine: each batch is ingested as soon as it has its vectors, while
others are embedded. For a named collection a stage has as many texts as are added there at once, if
those are more: each addition costs a transaction. An `aggregate` in place of the ingestion joins
the parts, so users of the collection see no difference. Done if the vectors are used for the
collection only, and if a failure of either operator fails the row. Then a named collection may have
a part of the row's passages; ingesting all of them again adds what is missing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import (
    MOST_ITEMS,
    Aggregate,
    Argument,
    Declaration,
    Embedding,
    Ingest,
    Operator,
    Reference,
    StagedMap,
    batch_size,
)
from kairos.workflows.compile.references import inner_arguments, named_in, own_arguments, with_body

_LONGEST_BASE = 50  # characters of a name that is extended


def staged(declaration: Declaration) -> Declaration:
    """Return the flow in stages; the order of dependencies stays valid. Idempotent."""
    operators = declaration.operators
    taken = {each.name for each in every_operator(operators)}
    used = Counter(named_in(output.value for output in declaration.outputs))
    for each in every_operator(operators):
        used.update(named_in((*own_arguments(each), *inner_arguments(each))))
    return msgspec.structs.replace(declaration, operators=_of_scope(operators, used, taken))


def _of_scope(
    operators: Sequence[Operator], used: Mapping[str, int], taken: set[str]
) -> tuple[Operator, ...]:
    """Return a scope in stages. `used`: number of references to each; `taken`: names in use."""
    pairs = dict(_pairs(operators, used))
    gone = {embedding.name for embedding in pairs.values()}
    found: list[Operator] = []
    for each in operators:
        if (embedding := pairs.get(each.name)) is not None:
            found += _stages(embedding, each, taken)
        elif each.body and not isinstance(each.params, StagedMap):
            found.append(with_body(each, _of_scope(each.body, used, taken)))
        elif each.name not in gone:
            found.append(each)
    return tuple(found)


def _pairs(
    operators: Sequence[Operator], used: Mapping[str, int]
) -> Iterator[tuple[str, Operator]]:
    """Yield the names of ingestions, each with the embedding of its passages."""
    by_name = {each.name: each for each in operators}
    after = {name for each in every_operator(operators) for name in each.after}
    for each in operators:
        if not isinstance(each.params, Ingest) or each.on_error != "fail":
            continue
        vectors = each.inputs["vectors"]
        embedding = by_name.get(vectors.operator) if isinstance(vectors, Reference) else None
        if (
            embedding is not None
            and vectors == Reference(embedding.name)
            and isinstance(embedding.params, Embedding)
            and embedding.on_error == "fail"
            and embedding.inputs["texts"] == each.inputs["texts"]
            and used[embedding.name] == 1
            and embedding.name not in after
        ):
            yield each.name, embedding


def _stages(embedding: Operator, ingestion: Operator, taken: set[str]) -> Iterator[Operator]:
    assert isinstance(embedding.params, Embedding)
    assert isinstance(ingestion.params, Ingest)
    stages = fresh(ingestion.name, "stages", taken)
    vectors = fresh(embedding.name, "part", taken)
    part = fresh(ingestion.name, "part", taken)
    texts: Argument = Reference(f"{stages}.item")
    batch = batch_size(embedding.params)
    if ingestion.params.collection is not None:
        batch *= -(-batch_size(ingestion.params) // batch)  # whole batches of the embedder
    batch = min(batch, MOST_ITEMS)
    replace = msgspec.structs.replace
    body = (
        replace(embedding, name=vectors, inputs={"texts": texts}, after=()),
        replace(
            ingestion, name=part, inputs={"texts": texts, "vectors": Reference(vectors)}, after=()
        ),
    )
    yield Operator(
        name=stages,
        params=StagedMap(
            over=embedding.inputs["texts"],
            body=body,
            result=Reference(part),
            max_items=-(-MOST_ITEMS // batch),
            batch=batch,
            declared={stages: ingestion.name, vectors: embedding.name, part: ingestion.name},
        ),
        after=tuple(dict.fromkeys((*embedding.after, *ingestion.after))),
    )
    yield Operator(name=ingestion.name, params=Aggregate(), inputs={"parts": Reference(stages)})


def fresh(base: str, suffix: str, taken: set[str]) -> str:
    """Return a name that no other operator has, with a number if need be."""
    name = made = f"{base[:_LONGEST_BASE]}_{suffix}"
    number = 1
    while made in taken:
        number += 1
        made = f"{name}{number}"
    taken.add(made)
    return made
