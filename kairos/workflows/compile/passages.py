"""Cut a text into passages of a number of words."""

import re
from collections.abc import Iterator

# A run of characters without spaces counts as several words: texts of languages without spaces,
# too. None of the patterns backtracks, so they take time linear in the text.
_WORD = r"\S{1,64}+"
_ANY = re.compile(r"\S")


def passages(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the passages as they stand in the text, from first to last word.

    `overlap`: words at the end of one passage with which the next begins, fewer than `size`. Every
    word is in a passage; the last one may be shorter, and has at least one word that is in no
    earlier one. Memory does not grow with the text.
    """
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
