"""Where two prompts whose texts are not all known yet begin alike.

A chat is laid out message by message, as chat templates do. What is known is marked every 64 bytes,
a text that is not by what it will be; each mark is a hash of all before it. What was answered
follows the prompt, so that a chat that goes on with the answer has its mark, too.
"""

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from kairos.plan.unknown_values import BYTES_PER_TOKEN, Pieces, UnknownText

_MARK_BYTES = 64
_HEADER_TOKENS, _END_TOKENS = 3, 1  # of a message, as chat templates have them


class PromptMarks(msgspec.Struct, frozen=True):
    """`prefixes`: hashes, with the tokens up to each; `name`: of all of it; `answered`: with the
    answer after it."""

    tokens: float
    prefixes: tuple[tuple[int, float], ...]
    name: int
    answered: int


def prompt_marks(messages: Sequence[tuple[str, Pieces]]) -> PromptMarks:
    """By role, what each message consists of."""
    marking = _Marking()
    for role, pieces in messages:
        marking.known(f"<{role}>".encode(), _HEADER_TOKENS)
        for piece in pieces:
            if isinstance(piece, UnknownText):
                marking.unknown(piece)
            else:
                marking.text(piece.encode("utf-8", "replace"))
        marking.known(b"\n", _END_TOKENS)
    marking.known(b"<assistant>", _HEADER_TOKENS)
    return marking.end()


def alike(first: PromptMarks, second: PromptMarks) -> float:
    """Tokens of the first up to where the second begins to differ."""
    known = {name for name, _ in second.prefixes}
    return max((tokens for name, tokens in first.prefixes if name in known), default=0.0)


class _Marking:
    def __init__(self) -> None:
        self._chain, self._tokens = b"", 0.0
        self._marks: list[tuple[int, float]] = []

    def text(self, raw: bytes) -> None:
        for at in range(0, len(raw), _MARK_BYTES):
            each = raw[at : at + _MARK_BYTES]
            self.known(each, len(each) / BYTES_PER_TOKEN)

    def known(self, raw: bytes, tokens: float) -> None:
        self._chain = blake2b(self._chain + raw, digest_size=8).digest()
        self._tokens += tokens
        self._mark()

    def unknown(self, text: UnknownText) -> None:
        self._chain = _answered(self._chain, text.identity)
        self._tokens += text.tokens
        self._mark()

    def end(self) -> PromptMarks:
        name = int.from_bytes(self._chain)
        answered = int.from_bytes(_answered(self._chain, f"{name:x}"))
        return PromptMarks(self._tokens, tuple(self._marks), name, answered)

    def _mark(self) -> None:
        self._marks.append((int.from_bytes(self._chain), self._tokens))


def _answered(chain: bytes, identity: str) -> bytes:
    return blake2b(chain + b"answer " + identity.encode(), digest_size=8).digest()
