"""Detect finished items of a list while its text streams in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ijson

from kairos.workflows.compile.operators import Path

_GROWTH = 16


def list_listener(
    path: Path, most: int, tell: Callable[[int, list[object]], None]
) -> Callable[[str], None]:
    """Return a function that takes the text, and tells of items as they are finished.

    `tell` gets the position of the first new item, and the new items; `most` items in all. It is
    not called again after text that is not JSON. Two paths whose keys have dots may be confused:
    items are only computed ahead, and the whole answer decides.
    """
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


class ParsedItems:
    """Parts of a text that a function finds, while the text streams in.

    The function is called with the text so far, one call at a time, each time that the text has
    grown by a sixteenth. All parts but the last are finished. Parts that turn out different later
    are passed on again. If the function fails, nothing is passed on that time.
    """

    def __init__(
        self,
        parse: Callable[[str], Awaitable[object]],
        most: int,
        tell: Callable[[int, list[object]], None],
    ) -> None:
        self._parse, self._most, self._tell = parse, most, tell
        self._text, self._parsed = "", 0  # characters of the latest call
        self._told: list[object] = []
        self._task: asyncio.Task[None] | None = None

    def hear(self, text: str) -> None:
        """Take the next piece of text."""
        self._text += text
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    def close(self) -> None:
        """Pass on no more parts."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while len(self._text) - self._parsed > self._parsed // _GROWTH:
            self._parsed = len(self._text)
            found = await self._parse(self._text)
            if isinstance(found, list):
                self._take(found[: min(len(found) - 1, self._most)] if found else [])

    def _take(self, finished: list[object]) -> None:
        same = 0
        for one, other in zip(finished, self._told, strict=False):
            if one != other:
                break
            same += 1
        if same < max(len(finished), len(self._told)):
            self._told = finished
            self._tell(same, finished[same:])
