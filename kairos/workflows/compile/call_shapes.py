"""The LLM calls of a flow as its order is reckoned: what each prompt consists of, how long it and
the answer are about, and whose answers it needs. Of one row; loops and maps once."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.core.model import EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.check import every
from kairos.workflows.compile.costs.token_steps import PromptSegment, ScheduledCall
from kairos.workflows.compile.operators import Generation, Operator
from kairos.workflows.compile.prompts import Computed, Hole, Piece, Prompt, prompts
from kairos.workflows.compile.references import needs
from kairos.workflows.compile.tree import PrefixNode, PromptTree, size_bytes
from kairos.workflows.compile.values import BYTES_PER_TOKEN

COLUMN_TOKENS = 500  # of a value that only a row tells


class CallShapes(msgspec.Struct, frozen=True):
    """By operator. `varies`: with which segment of its prompt, from 0, rows begin to differ;
    `static`: what is before; equal ones begin alike for all rows."""

    calls: Mapping[str, ScheduledCall]
    varies: Mapping[str, int]
    static: Mapping[str, Prompt]


def call_shapes(operators: Sequence[Operator]) -> CallShapes:
    """Of operators as `in_order` gives them. Answers are taken for as long as they may be."""
    by_operator = prompts(operators)
    tree, waits = PromptTree(by_operator), llm_needs(operators)
    answers = answers_bytes(operators)
    labels = {label for each in by_operator.values() for label in _labels(each)}
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
    """By LLM operator, how long its answer may be."""
    return {
        each.name: BYTES_PER_TOKEN * (each.params.max_tokens or EXPECTED_COMPLETION_TOKENS)
        for each in every(operators)
        if isinstance(each.params, Generation)
    }


def fixed(pieces: Sequence[Piece]) -> int:
    """How many, from the first on, are the same for every row."""
    for at, each in enumerate(pieces):
        if isinstance(each, Hole | Computed):
            return at
    return len(pieces)


def llm_needs(operators: Sequence[Operator]) -> dict[str, tuple[str, ...]]:
    """By LLM operator, those whose answers it needs, directly or by others. What needs a loop or a
    map needs all that is in it."""
    found: dict[str, tuple[str, ...]] = {}
    _follow(operators, {}, (), found)
    return found


def _follow(
    operators: Sequence[Operator],
    callers: dict[str, tuple[str, ...]],
    around: tuple[str, ...],
    found: dict[str, tuple[str, ...]],
) -> None:
    """`callers`: of any operator, the LLM operators that whoever needs it waits for. `around`:
    those that the loop or the map waits for in whose body these are."""
    for each in operators:
        wanted = (name for need in needs(each) for name in callers.get(need, ()))
        waits = tuple(dict.fromkeys((*around, *wanted)))
        if isinstance(each.params, Generation):
            found[each.name] = waits
            waits = (each.name,)
        if each.body:
            _follow(each.body, callers, waits, found)
            inner = (name for one in each.body for name in callers[one.name])
            waits = tuple(dict.fromkeys((*waits, *inner)))
        callers[each.name] = waits


_ROW = "/row"  # ends the name of a segment that differs between rows


def _segments(
    path: Sequence[PrefixNode], numbers: Mapping[PrefixNode, int], holes: Mapping[str, int]
) -> Iterator[PromptSegment]:
    """A node whose pieces differ between rows from some piece on is two. Tokens add up to those of
    the whole, rounded down."""
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


def _labels(prompt: Prompt) -> Iterator[str]:
    return (each.label for each in prompt if isinstance(each, Hole | Computed))
