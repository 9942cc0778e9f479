"""The functions that flows of this folder call."""

import re
from collections.abc import Iterator
from pathlib import Path

from kairos.flow import Functions

DOCS = Path(__file__).parents[1] / "docs"
functions = Functions()


def in_text(figures: list[dict[str, str]], text: str) -> list[bool]:
    """Whether the value of each figure stands in the text."""
    return [bool(each["value"].strip()) and each["value"].strip() in text for each in figures]


def search_web(query: str, count: int) -> list[str]:
    """In the place of a search of the web: sections of this repository's documentation that have
    most words of the query, the shorter of equal ones first. Always the same."""
    asked = _words(query)
    ranked = sorted(_sections(), key=lambda each: (-len(asked & _words(each)), len(each), each))
    return [section[:500] for section in ranked[:count]]


def _sections() -> Iterator[str]:
    for path in sorted(DOCS.rglob("*.md")):
        yield from filter(None, re.split(r"^#+ ", path.read_text(), flags=re.MULTILINE))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{3,}", text.lower()))


functions.register(in_text, purity="pure", version="1")
functions.register(search_web, purity="pure", version="1")
