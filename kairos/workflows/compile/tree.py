"""Templated radix tree of a flow: common prefixes of its prompts before any row is known.

See Helium, section 5 and appendix A, algorithm 2. A node has a stretch of a prompt, and the
operators whose prompts end there; the path from the root to it is everything before. Dependencies
between operators are in the graph, not here.

Deviations: there is one tree for all workers, since the instance of a call is chosen when it is
ready. Texts are split at characters, not at tokens, as the tokenizer is the engine's; sizes count
bytes. An operator is a leaf by its name, even if others end there, too.
"""

from collections.abc import Iterator, Mapping

from kairos.workflows.compile.prompts import Computed, Hole, Piece, Prompt, Speaker, Text


class PrefixNode:
    """Longest stretch shared by all prompts below it. The root has none."""

    __slots__ = ("before", "behind", "operators", "pieces")

    def __init__(self, pieces: Prompt, before: "PrefixNode | None") -> None:
        self.pieces = pieces
        self.before = before
        self.behind: dict[object, PrefixNode] = {}  # by their first piece
        self.operators: list[str] = []  # operators whose prompts end here

    def below(self) -> Iterator[str]:
        """Yield the operators whose prompts have it."""
        look = [self]
        while look:
            node = look.pop()
            yield from node.operators
            look.extend(reversed(node.behind.values()))


class PromptTree:
    """Tree built once from prompts by operator; it does not change afterwards."""

    def __init__(self, prompts: Mapping[str, Prompt]) -> None:
        self.root = PrefixNode((), None)
        self._leaf: dict[str, PrefixNode] = {}
        for operator, prompt in prompts.items():
            self._add(operator, prompt)

    def path(self, operator: str) -> tuple[PrefixNode, ...]:
        """Return the nodes of an operator's prompt, from its beginning."""
        found = [self._leaf[operator]]
        while (before := found[-1].before) is not None:
            found.append(before)
        return tuple(reversed(found))[1:]

    def nodes(self) -> Iterator[tuple[PrefixNode, int]]:
        """Yield all nodes but the root, each before its children, with its depth."""
        look = [(node, 0) for node in reversed(self.root.behind.values())]
        while look:
            node, depth = look.pop()
            yield node, depth
            look.extend((each, depth + 1) for each in reversed(node.behind.values()))

    def _add(self, operator: str, prompt: Prompt) -> None:
        """Add a prompt: descend while nodes begin alike; split one that does in part."""
        node, left = self.root, prompt
        while left:
            behind = node.behind.get(_key(left[0]))
            if behind is None:
                new = PrefixNode(left, node)
                node.behind[_key(left[0])] = new
                node, left = new, ()
                break
            same, ours, left = _parted(behind.pieces, left)
            if ours:
                behind = _split(behind, same, ours)
            node = behind
        node.operators.append(operator)
        self._leaf[operator] = node


def _split(node: PrefixNode, above: Prompt, below: Prompt) -> PrefixNode:
    """Split a node, which becomes the lower part; return the upper one."""
    assert node.before is not None
    upper = PrefixNode(above, node.before)
    node.before.behind[_key(above[0])] = upper
    node.pieces, node.before = below, upper
    upper.behind[_key(below[0])] = node
    return upper


def _parted(one: Prompt, other: Prompt) -> tuple[Prompt, Prompt, Prompt]:
    """Return the common beginning, and the rest of each. Adjacent texts must be joined in both."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a == b:
            continue
        if isinstance(a, Text) and isinstance(b, Text) and a.text[0] == b.text[0]:
            both = zip(a.text, b.text, strict=False)
            differ = (place for place, (x, y) in enumerate(both) if x != y)
            same = next(differ, min(len(a.text), len(b.text)))
            common = (*one[:at], Text(a.text[:same]))
            return common, _rest(a, same, one[at + 1 :]), _rest(b, same, other[at + 1 :])
        return one[:at], one[at:], other[at:]
    least = min(len(one), len(other))
    return one[:least], one[least:], other[least:]


def _rest(text: Text, taken: int, behind: Prompt) -> Prompt:
    left = text.text[taken:]
    return (Text(left), *behind) if left else behind


def _key(piece: Piece) -> object:
    return ("text", piece.text[0]) if isinstance(piece, Text) else piece


def size_bytes(piece: Piece, holes: Mapping[str, int]) -> int:
    """Return the bytes of a piece. `holes`: bytes of values by label; unknown ones count 0."""
    match piece:
        case Text(text=text):
            return len(text.encode())
        case Hole(label=label) | Computed(label=label):
            return holes.get(label, 0)
        case Speaker():
            return 0
