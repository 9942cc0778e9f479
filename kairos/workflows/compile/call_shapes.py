"""Shapes of a flow's LLM calls, for its order: prompt segments, lengths, and dependencies.

They are for one row; bodies of loops and maps count once.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.check import llm_operators
from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.compile.prompts import Computed, Hole, Piece, Prompt, prompts
from kairos.workflows.compile.references import needs
from kairos.workflows.compile.tree import PrefixNode, PromptTree, size_bytes

COLUMN_TOKENS = 500  # assumed for a value that only the row has


class PromptSegment(msgspec.Struct, frozen=True):
    """Segment of a prompt: equal names mean equal text, if the segments before are equal, too."""

    name: str
    tokens: int


class ScheduledCall(msgspec.Struct, frozen=True):
    """Call of a schedule.

    `prompt`: its segments, as the path of a radix tree. `after`: names of calls whose answers it
    needs.
    """

    prompt: tuple[PromptSegment, ...]
    completion_tokens: int
    after: tuple[str, ...] = ()


def delay(call: ScheduledCall) -> float:
    """Return the token steps from a call's end until calls that need its answer may begin."""
    return float(call.completion_tokens)


class CallShapes(msgspec.Struct, frozen=True):
    """LLM calls by operator.

    `varies`: the first segment of the prompt, from 0, that differs between rows; `static`: the
    segments before it, equal for prompts that begin alike for all rows.
    """

    calls: Mapping[str, ScheduledCall]
    varies: Mapping[str, int]
    static: Mapping[str, Prompt]


def call_shapes(operators: Sequence[Operator]) -> CallShapes:
    """Return the shapes for operators in the order of `in_order`.

    Answers are assumed to have their maximum length.
    """
    by_operator = prompts(operators)
    tree, waits = PromptTree(by_operator), llm_needs(operators)
    answers = answers_bytes(operators)
    pieces = (each for prompt in by_operator.values() for each in prompt)
    labels = {each.label for each in pieces if isinstance(each, Hole | Computed)}
    holes = dict.fromkeys(labels, COLUMN_TOKENS * BYTES_PER_TOKEN) | answers
    numbers = {node: at for at, (node, _) in enumerate(tree.nodes())}
    calls, varies, static = {}, {}, {}
    for name, prompt in by_operator.items():
        segments = tuple(_segments(tree.path(name), numbers, holes))
        calls[name] = ScheduledCall(segments, answers[name] // BYTES_PER_TOKEN, waits[name])
        varies[name] = next(
            (at for at, each in enumerate(segments) if each.name.endswith(_ROW)), len(segments)
        )
        static[name] = prompt[: fixed(prompt)]
    return CallShapes(calls, varies, static)


def answers_bytes(operators: Sequence[Operator]) -> dict[str, int]:
    """Return the maximum length in bytes of each LLM operator's answer."""
    return {
        name: BYTES_PER_TOKEN * (each.max_tokens or EXPECTED_COMPLETION_TOKENS)
        for name, each in llm_operators(operators).items()
    }


def fixed(pieces: Sequence[Piece]) -> int:
    """Return the number of leading pieces that are the same for every row."""
    unknown = (at for at, each in enumerate(pieces) if isinstance(each, Hole | Computed))
    return next(unknown, len(pieces))


def llm_needs(operators: Sequence[Operator]) -> dict[str, tuple[str, ...]]:
    """Return for each LLM operator the LLM operators whose answers it needs, directly or not.

    An operator that needs a loop or a map needs all operators in its body.
    """
    found: dict[str, tuple[str, ...]] = {}
    callers: dict[str, tuple[str, ...]] = {}  # LLM operators that a user of a value waits for

    def follow(operators: Sequence[Operator], around: tuple[str, ...]) -> None:
        """Follow a scope. `around`: LLM operators that the loop or map around it waits for."""
        for each in operators:
            wanted = (name for need in needs(each) for name in callers.get(need, ()))
            waits = tuple(dict.fromkeys((*around, *wanted)))
            if isinstance(each.params, Generation):
                found[each.name] = waits
                waits = (each.name,)
            if each.body:
                follow(each.body, waits)
                inner = (name for one in each.body for name in callers[one.name])
                waits = tuple(dict.fromkeys((*waits, *inner)))
            callers[each.name] = waits

    follow(operators, ())
    return found


_ROW = "/row"  # suffix of a segment that differs between rows


def _segments(
    path: Sequence[PrefixNode], numbers: Mapping[PrefixNode, int], holes: Mapping[str, int]
) -> Iterator[PromptSegment]:
    """Yield the segments of a prompt from the nodes of its path.

    A node is split where its pieces begin to differ between rows. Tokens add up to the whole
    prompt's, rounded down.
    """
    end, same = 0, True
    for node in path:
        parts = [(node.pieces, _ROW)]
        if same:
            first = fixed(node.pieces)
            parts = [(node.pieces[:first], ""), (node.pieces[first:], _ROW)]
            same = first == len(node.pieces)
        for pieces, suffix in parts:
            if pieces:
                size = sum(size_bytes(each, holes) for each in pieces)
                tokens = (end + size) // BYTES_PER_TOKEN - end // BYTES_PER_TOKEN
                yield PromptSegment(f"{numbers[node]}{suffix}", tokens)
                end += size
