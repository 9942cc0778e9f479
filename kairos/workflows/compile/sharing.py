"""Columns for partitioning rows, so that rows with equal calls are in the same part.

An operator makes equal calls for two rows that are equal in the columns that it needs. If rows are
partitioned by these columns, or by some of them, no two parts make the same call. The choice is
made from a sample of rows: the columns that keep most equal calls together, unless one value has
too many of the rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import (
    Asking,
    Declaration,
    Group,
    Input,
    Operator,
    Reference,
)
from kairos.workflows.compile.references import inner_arguments, needs, own_arguments, referred

_MOST_OF_A_PART = 0.5  # share of an even part that one value may have

Columns = frozenset[str]
_encode = msgspec.json.Encoder(order="sorted").encode


def shared_columns(
    declaration: Declaration, rows: Sequence[Mapping[str, object]], parts: int
) -> tuple[str, ...] | None:
    """Return the columns to partition rows by; None: no calls are equal, so any parts will do.

    Args:
        declaration: of a plan.
        rows: a sample of the table.
        parts: number of parts.
    """
    saved: dict[Columns, int] = {}
    for columns in set(_asking(declaration)):
        distinct = len({key_of(row, sorted(columns)) for row in rows})
        saved[columns] = len(rows) - distinct
    candidates = [each for each in saved if saved[each] and each and _are_even(each, rows, parts)]
    if not candidates:
        return None

    def kept(columns: Columns) -> int:
        """Count the calls that are saved by partitioning by these columns."""
        return sum(calls for needed, calls in saved.items() if needed >= columns)

    best = max(candidates, key=lambda each: (kept(each), len(each), sorted(each)))
    return tuple(sorted(best))


def key_of(row: Mapping[str, object], columns: Sequence[str]) -> bytes:
    """Return a key that is equal for rows equal in these columns."""
    return _encode([row.get(column) for column in columns])


def part_of(key: bytes, parts: int) -> int:
    digest = blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "big") % parts


def _are_even(columns: Columns, rows: Sequence[Mapping[str, object]], parts: int) -> bool:
    if parts == 1:
        return True
    counts = Counter(key_of(row, sorted(columns)) for row in rows)
    return max(counts.values()) <= max(1.0, _MOST_OF_A_PART * len(rows) / parts)


def _asking(declaration: Declaration) -> Iterable[Columns]:
    """Yield the columns of each operator whose calls may be shared; not whole rows."""
    known: dict[str, Columns | None] = {}
    for each in declaration.operators:
        if isinstance(each.params, Input):
            known[each.name] = None
        elif not isinstance(each.params, Group):
            known[each.name] = needed = _needed(each, known, declaration)
            asks = (o for o in every_operator((each,)) if isinstance(o.params, Asking))
            if needed is not None and any(operator.purity == "pure" for operator in asks):
                yield needed


def _needed(
    operator: Operator, known: Mapping[str, Columns | None], declaration: Declaration
) -> Columns | None:
    """Return the columns that an operator needs; None: the whole row, or a group's values."""
    around = needs(operator)
    inputs = {each.name for each in declaration.operators if isinstance(each.params, Input)}
    found: set[str] = set()
    for each in every_operator((operator,)):
        for argument in (*own_arguments(each), *inner_arguments(each)):
            for reference in referred(argument):
                if reference.operator not in around:
                    continue
                columns = _columns(reference, inputs, known)
                if columns is None:
                    return None
                found |= columns
    return frozenset(found)


def _columns(
    reference: Reference, inputs: set[str], known: Mapping[str, Columns | None]
) -> Columns | None:
    if reference.operator not in inputs:
        return known.get(reference.operator)
    first = reference.path[0] if reference.path else None
    return frozenset((first,)) if isinstance(first, str) else None
