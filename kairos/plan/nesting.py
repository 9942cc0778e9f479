"""How operators and rows are nested: which calls of a batch follow each other.

An inner sequence is a set of operators that a batch goes through row by row; one sequence comes
after the other (Helium, section 5, nested sequences). With all operators in one, rows follow each
other (row-major); with one in each, operators do (operator-major); between these lies one sequence
for each static beginning of prompts, so that a row's context is found by the operators that share
it, and a long static beginning by all rows.
"""

from collections.abc import Mapping, Sequence

from kairos.plan.costs.token_steps import PromptSegment, ScheduledCall

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
        "operator-major": tuple((name,) for name in order),
    }
    seen: dict[Sequences, str] = {}
    for name, sequences in found.items():
        seen.setdefault(sequences, name)
    return {name: sequences for sequences, name in seen.items()}


def of_rows(
    calls: Mapping[str, ScheduledCall], varies: Mapping[str, int], rows: int
) -> dict[str, ScheduledCall]:
    """The calls of so many rows, by `row/operator`. `varies`: by operator, with which segment of
    its prompt, from 0, rows begin to differ."""
    return {
        f"{row}/{name}": ScheduledCall(
            tuple(
                PromptSegment(f"{row}/{each.name}", each.tokens) if at >= varies[name] else each
                for at, each in enumerate(call.prompt)
            ),
            call.completion_tokens,
            tuple(f"{row}/{needed}" for needed in call.after),
        )
        for row in range(rows)
        for name, call in calls.items()
    }


def expanded(sequences: Sequences, rows: int) -> tuple[str, ...]:
    """Of so many rows, as `of_rows` names them."""
    return tuple(
        f"{row}/{name}" for sequence in sequences for row in range(rows) for name in sequence
    )
