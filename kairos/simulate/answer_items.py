"""Items of a list in an answer, reported while the rest of the answer is still generated.

A live run receives them from a stream in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.simulate.clock import VirtualClock
from kairos.workflows import ItemsFinished, Path

LOOK_US = 10_000  # so long after it was generated an item is told, at most

Generated = Callable[[], Mapping[str, int]]  # tokens that each call's answer has by now


def finished_items(text: str, path: Path, most: int) -> list[tuple[int, object]]:
    """Return each item of a list in a JSON text, and after how many tokens it is complete.

    The text is as msgspec writes it.
    """
    value: Any = msgspec.json.decode(text)
    for key in path:
        value = value[key]
    assert isinstance(value, list)
    raw, at, found = text.encode(), 0, []
    if value:
        at = raw.index(msgspec.json.encode(value))
    for item in value[:most]:
        encoded = msgspec.json.encode(item)
        at = raw.index(encoded, at) + len(encoded)
        found.append((-(-at // BYTES_PER_TOKEN), item))
    return found


def parsed_items(text: str, parse: Callable[[str], object], most: int) -> list[tuple[int, object]]:
    """Return the parts of a text as a function finds them, as far as prefixes have the same."""
    raw, found = text.encode(), list[tuple[int, object]]()
    for tokens in range(1, len(raw) // BYTES_PER_TOKEN + 1):
        prefix = raw[: tokens * BYTES_PER_TOKEN].decode(errors="ignore")
        parts = parse(prefix)
        finished = parts[:-1] if isinstance(parts, list) else []
        if len(found) < len(finished):
            found += [(tokens, each) for each in finished[len(found) : most]]
    return found


class AnswerItems:
    """Looks at answers in short turns, as long as they are under way."""

    def __init__(
        self,
        clock: VirtualClock,
        generated: Generated,
        is_open: Callable[[str], bool],
        tell: Callable[[ItemsFinished], None],
    ) -> None:
        self._clock, self._generated, self._is_open, self._tell = clock, generated, is_open, tell

    def follow(self, request_id: str, call: int, items: Sequence[tuple[int, object]]) -> None:
        self._look(request_id, call, items, 0)

    def _look(
        self, request_id: str, call: int, items: Sequence[tuple[int, object]], told: int
    ) -> None:
        if not self._is_open(request_id):
            return
        tokens = self._generated().get(request_id, 0)
        new = [item for _, item in takewhile(lambda each: each[0] <= tokens, items[told:])]
        if new:
            self._tell(ItemsFinished(call, told, new))
        told += len(new)
        if told < len(items):
            again = partial(self._look, request_id, call, items, told)
            self._clock.call_at(self._clock.now() + LOOK_US, again)
