"""How operators and rows are nested: which calls of a batch follow each other.

An inner sequence is a set of operators that a batch goes through row by row; one sequence comes
after the other (Helium, section 5, nested sequences). With all operators in one, rows follow each
other (row-major); with one in each, operators do (operator-major). Between these lies one sequence
for each static beginning of prompts, so that a row's context is found by the operators that share
it, and a long static beginning by all rows (nested). Where operators with the same beginning wait
for others between, that would mix sequences: so there is one for each stretch of the order, too.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

Sequences = tuple[tuple[str, ...], ...]


def nestings(order: Sequence[str], static: Mapping[str, object]) -> dict[str, Sequences]:
    """By name, each different one once. `static`: by operator, what its prompt begins with for all
    rows; equal ones are one sequence."""
    groups: dict[object, list[str]] = {}
    for name in order:
        groups.setdefault(static[name], []).append(name)
    found = {
        "row-major": (tuple(order),),
        "nested": tuple(tuple(group) for group in groups.values()),
        "in stretches": tuple(tuple(group) for _, group in groupby(order, static.__getitem__)),
        "operator-major": tuple((name,) for name in order),
    }
    seen: dict[Sequences, str] = {}
    for name, sequences in found.items():
        seen.setdefault(sequences, name)
    return {name: sequences for sequences, name in seen.items()}
