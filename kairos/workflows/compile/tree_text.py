"""Explanation of the tree of a flow's prompts, with the savings of each cached prefix."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.workflows.compile.call_shapes import answers_bytes, fixed
from kairos.workflows.compile.operators import Operator
from kairos.workflows.compile.prompts import Computed, Hole, Piece, Speaker, Text, prompts
from kairos.workflows.compile.tree import PrefixNode, PromptTree, size_bytes

_SHOWN = 48  # characters of a text


class ExplainedPrefix(msgspec.Struct, frozen=True):
    """Stretch of prompts, at four bytes a token, with answers at their maximum length."""

    depth: int
    says: str
    tokens: int  # as far as known before the row is
    unknown: tuple[str, ...]  # values of unknown size
    prompts: int  # that have it
    operators: tuple[str, ...]  # whose prompts end with it
    saves_tokens: int  # per row, of many, if it is cached each time but the first


def explained_prompts(operators: Sequence[Operator]) -> tuple[ExplainedPrefix, ...]:
    """Return the stretches of all LLM operators' prompts, from the root down.

    Operators must be in the order of `in_order`.
    """
    tree = PromptTree(prompts(operators))
    answers = answers_bytes(operators)
    same_for_all: dict[int, bool] = {id(tree.root): True}  # for all rows, up to there
    found = []
    for node, depth in tree.nodes():
        assert node.before is not None
        before = same_for_all[id(node.before)]
        same_for_all[id(node)] = before and fixed(node.pieces) == len(node.pieces)
        found.append(_explained(node, depth, answers, before))
    return tuple(found)


def prompt_lines(explained: Sequence[ExplainedPrefix]) -> Iterator[str]:
    if not explained:
        return
    saved = sum(each.saves_tokens for each in explained)
    yield (
        "prompts as a tree, from their beginnings; what is shared saves "
        f"{saved} known tokens a row, while engines have it:"
    )
    for each in explained:
        yield "  " * (each.depth + 1) + _line(each)


def _line(each: ExplainedPrefix) -> str:
    about = " and ".join([f"{each.tokens} tokens", *each.unknown])
    parts = [f"{each.says}: {about}"]
    if each.prompts > 1:
        parts.append(f"in {each.prompts} prompts")
    if each.saves_tokens:
        parts.append(f"saves {each.saves_tokens}")
    if each.operators:
        parts.append(f"-> {', '.join(each.operators)}")
    return "; ".join(parts)


def _explained(
    node: PrefixNode, depth: int, answers: Mapping[str, int], same_for_all: bool
) -> ExplainedPrefix:
    first = fixed(node.pieces) if same_for_all else 0
    sizes = [size_bytes(each, answers) for each in node.pieces]
    below = sum(1 for _ in node.below())
    saves = sum(sizes[:first]) * below + sum(sizes[first:]) * (below - 1)
    holes = [each.label for each in node.pieces if isinstance(each, Hole | Computed)]
    return ExplainedPrefix(
        depth=depth,
        says=" ".join(filter(None, map(_shown, node.pieces))),
        tokens=sum(sizes) // BYTES_PER_TOKEN,
        unknown=tuple(f"{{{each}}}" for each in holes if each not in answers),
        prompts=below,
        operators=tuple(node.operators),
        saves_tokens=saves // BYTES_PER_TOKEN,
    )


def _shown(piece: Piece) -> str:
    match piece:
        case Text(text=text):
            return repr(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
        case Hole(label=label):
            return f"{{{label}}}"
        case Computed(label=label):
            return f"{{%{label}%}}"
        case Speaker(role=role):
            return f"<{role}>"
