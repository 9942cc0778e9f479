"""A text cut into passages of so many words."""

import re
from collections.abc import Iterator

# What has no space for longer counts as several words: text of languages without any, too. None of
# the patterns goes back over what it has matched, so they take time in the length of the text.
_WORD = r"\S{1,64}+"
_ANY = re.compile(r"\S")


def passages(text: str, size: int, overlap: int) -> Iterator[str]:
    """Each as it stands in the text, from its first word to its last. `overlap`: words at the end
    of one with which the next begins, fewer than `size`. Every word is in one; the last passage may
    be shorter, and has at least one word that none before it has. What is held does not grow with
    the text."""
    passage = re.compile(rf"{_WORD}(?:\s*+{_WORD}){{0,{size - 1}}}+")
    step = re.compile(rf"(?:{_WORD}\s*+){{{size - overlap}}}")
    found = passage.search(text)
    while found is not None:
        yield found[0]
        if _ANY.search(text, found.end()) is None:
            return
        stepped = step.match(text, found.start())
        assert stepped is not None, "a passage that is not the last has as many words"
        found = passage.match(text, stepped.end())
