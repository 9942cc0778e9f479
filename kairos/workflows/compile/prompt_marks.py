"""Marks of prompts whose texts are not all known, to find common prefixes.

A chat is laid out message by message, as by chat templates. Known text is marked every 64 bytes,
and in a long text at larger and larger distances; an unknown text by its identity. Each mark is a
hash of all before it. The answer follows the prompt, so that a chat that continues after the answer
has its mark, too.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.workflows.compile.unknown_values import Pieces, UnknownText

_MARK_BYTES = 64
_MARKED_CLOSELY = 1_024  # bytes at the beginning of a text
_HEADER_TOKENS, _END_TOKENS = 3, 1  # of a message, as in chat templates
_KEPT, _KEPT_BYTES = 1_024, 16 << 10  # texts whose marks are cached, and bytes of each at most

_Marks = tuple[tuple[int, float], ...]


class PromptMarks(msgspec.Struct, frozen=True):
    """Marks of a prompt.

    `prefixes`: hashes, with the tokens up to each; `name`: hash of the whole prompt; `answered`:
    hash of the prompt with its answer.
    """

    tokens: float
    prefixes: tuple[tuple[int, float], ...]
    name: int
    answered: int


class PromptMarker:
    """Marks prompts. It caches the marks of texts by the text before them."""

    def __init__(self) -> None:
        # By the chain before and the text: the chain after it, and its marks. LRU.
        self._kept: OrderedDict[tuple[bytes, str], tuple[bytes, _Marks]] = OrderedDict()

    def marks(self, messages: Sequence[tuple[str, Pieces]]) -> PromptMarks:
        """Return the marks of a prompt. `messages`: by role, the pieces of each."""
        chain, tokens = b"", 0.0
        found: list[tuple[int, float]] = []
        for role, pieces in messages:
            chain, tokens = _marked(chain, f"<{role}>".encode(), tokens + _HEADER_TOKENS, found)
            for piece in pieces:
                if isinstance(piece, UnknownText):
                    chain = _answered(chain, piece.identity)
                    tokens += piece.tokens
                    found.append((int.from_bytes(chain), tokens))
                    continue
                chain, marks = self._text(chain, piece)
                found += [(name, tokens + size) for name, size in marks]
                tokens = found[-1][1]
            chain, tokens = _marked(chain, b"\n", tokens + _END_TOKENS, found)
        chain, tokens = _marked(chain, b"<assistant>", tokens + _HEADER_TOKENS, found)
        name = int.from_bytes(chain)
        answered = int.from_bytes(_answered(chain, f"{name:x}"))
        return PromptMarks(tokens, tuple(found), name, answered)

    def _text(self, before: bytes, text: str) -> tuple[bytes, _Marks]:
        key = (before, text)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        chain, marks = before, []
        raw = text.encode("utf-8", "replace")
        for first, last in _stretches(len(raw)):
            chain = blake2b(chain + raw[first:last], digest_size=8).digest()
            marks.append((int.from_bytes(chain), last / BYTES_PER_TOKEN))
        found = chain, tuple(marks)
        if len(raw) <= _KEPT_BYTES:
            self._kept[key] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def _stretches(size: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a text of `size` bytes; each ends with a mark."""
    at, least = 0, _MARK_BYTES
    while at < size:
        if at >= 8 * least and at >= _MARKED_CLOSELY:
            least *= 2
        end = min(size, at + least)
        yield at, end
        at = end


def _marked(
    chain: bytes, raw: bytes, tokens: float, marks: list[tuple[int, float]]
) -> tuple[bytes, float]:
    chain = blake2b(chain + raw, digest_size=8).digest()
    marks.append((int.from_bytes(chain), tokens))
    return chain, tokens


def _answered(chain: bytes, identity: str) -> bytes:
    return blake2b(chain + b"answer " + identity.encode(), digest_size=8).digest()
