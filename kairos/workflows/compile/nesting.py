"""Nesting of operators and rows: which calls of a batch follow each other.

An inner sequence is a set of operators that a batch passes row by row; sequences follow each other
(Helium, section 5, nested sequences). With all operators in one sequence, rows follow each other
(row-major); with one in each, operators do (operator-major). In between there is one sequence for
each static prefix of prompts, so that operators that share a row's context find it cached, and all
rows find a long static prefix (nested). If operators with the same prefix wait for others in
between, that would mix sequences: so there is one for each stretch of the order, too.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

Sequences = tuple[tuple[str, ...], ...]


def nestings(order: Sequence[str], static: Mapping[str, object]) -> dict[str, Sequences]:
    """Return the nestings by name, without duplicates.

    `static`: by operator, the static prefix of its prompt; equal ones form one sequence.
    """
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
