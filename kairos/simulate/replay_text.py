"""Prompts as text: of a wanted number of tokens, with the common prefixes of their pieces.

A prompt's text is words of a fixed list, one for each token, drawn by a hash of the piece's name:
the same name gives the same words, independent of later pieces. Another salt gives others, so a run
never finds an earlier one's texts in a cache. All words are three letters after a space, one
token in common vocabularies; the exact set in this server's, and the tokens that its chat template
adds, follow from the prompt tokens that it reports.
"""

from collections.abc import Awaitable, Callable
from hashlib import shake_256
from typing import Any

import numpy as np

from kairos.simulate.workload.prompt import Prompt, PromptPiece, cut, length

WORDS = (
    "all", "and", "any", "are", "bar", "bit", "but", "can", "cap", "day", "end", "fix", "for",
    "fun", "get", "got", "has", "how", "its", "key", "let", "low", "man", "map", "may", "mix",
    "net", "new", "not", "now", "off", "old", "one", "our", "out", "own", "per", "pop", "raw",
    "row", "run", "see", "set", "she", "sum", "the", "too", "top", "try", "two", "use", "was",
    "way", "who", "won", "you", "had", "her", "him", "did", "why", "say", "yes", "men",
)  # fmt: skip
GROUP = 4  # words that are tried together
ENOUGH = 16  # different words: of so many a block of 16 tokens has 2^64

CountTokens = Callable[[str], Awaitable[int]]


class Wording:
    """Turns prompts into text for one server."""

    def __init__(
        self,
        salt: str,
        words: tuple[str, ...] = WORDS,
        *,
        tokens_per_word: float = 1.0,
        overhead_tokens: int = 0,
    ) -> None:
        """Create it. Texts with different salts share nothing.

        `overhead_tokens` are the tokens that the chat template adds. The text is that much shorter,
        at its end: so two prompts share at least the prefix that they should, and more
        only by the template's part before the text.
        """
        self._salt = salt.encode()
        self.tokens_per_word = tokens_per_word
        self.overhead_tokens = overhead_tokens
        # One entry for each value of a byte of the hash: a prompt is a single look-up in it.
        self._words: np.ndarray[Any, Any] = np.resize(
            np.array([f" {word}".encode() for word in words]), 256
        )

    def text(self, prompt: Prompt) -> str:
        """Return the text, at least one word.

        Deterministic; it is in memory while the caller keeps it.
        """
        left_out = min(self.overhead_tokens, length(prompt) - 1)
        pieces = cut(prompt, left_out)
        return b"".join(map(self._words_of, pieces)).decode("ascii") or f" {WORDS[0]}"

    def _words_of(self, piece: PromptPiece) -> bytes:
        words = round(piece.tokens / self.tokens_per_word)
        # Its first bytes are the same, however many are asked for.
        drawn = shake_256(self._salt + b"/" + piece.name.encode()).digest(words)
        return self._words[np.frombuffer(drawn, np.uint8)].tobytes()


async def measured(count_tokens: CountTokens, salt: str) -> Wording:
    """The wording for a server that counts this many tokens in a chat of one message of text.

    Takes 2 counts where all words are one token each, else 18.
    """
    once, twice = await count_tokens(_said(WORDS)), await count_tokens(_said(WORDS * 2))
    if twice - once < len(WORDS) / 2:
        return Wording(salt)  # it does not count tokens
    overhead = max(0, 2 * once - twice)
    tokens_per_word = (twice - once) / len(WORDS)
    if tokens_per_word == 1:
        return Wording(salt, overhead_tokens=overhead)
    single: list[str] = []
    for start in range(0, len(WORDS), GROUP):
        group = WORDS[start : start + GROUP]
        if await count_tokens(_said(group)) == overhead + len(group):
            single += group
    if len(single) >= ENOUGH:
        return Wording(salt, tuple(single), overhead_tokens=overhead)
    return Wording(salt, tokens_per_word=tokens_per_word, overhead_tokens=overhead)


def _said(words: tuple[str, ...]) -> str:
    return "".join(f" {word}" for word in words)
