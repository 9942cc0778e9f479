"""Which items of a JSON list are finished, while its text comes piece by piece."""

from collections.abc import Callable
from typing import Any

import ijson

from kairos.plan.operators import Path


def list_listener(
    path: Path, most: int, tell: Callable[[int, list[object]], None]
) -> Callable[[str], None]:
    """Takes the text, and tells of items as they are finished, `most` in all: the position of the
    first that is new, and those that are. Of what is not JSON it tells no more. (Two paths whose
    keys have dots may be taken for each other: what is told is tried ahead alone, and the whole
    answer counts.)"""
    found: list[Any] = ijson.sendable_list()
    parser: Any = ijson.items_coro(found, ".".join((*map(str, path), "item")), use_float=True)
    told = 0

    def hear(text: str) -> None:
        nonlocal parser, told
        if parser is None:
            return
        try:
            parser.send(text.encode("utf-8", "replace"))
        except (ijson.JSONError, StopIteration, ValueError, OverflowError, RecursionError):
            parser = None
        if found:
            new = found[: most - told]
            found.clear()
            tell(told, new)
            told += len(new)
        if told >= most:
            parser = None

    return hear
