"""How many rows of a flow should be open at once, so that engines still have a row's contexts when
its later calls come.

More rows share each decoding step among more calls; but the contexts that a row's calls have in
common lie in the prefix caches of all open rows, and beyond what memory holds they are computed
anew. So for 1, 2, 4, ... rows it is reckoned what a row takes, and the least is taken, if it is
clearly less than with as many rows as there may be. A row takes

    computed prompt tokens + answer tokens / calls at once * STEP_TOKENS

in the time of a prompt token. `calls at once`: as many as the rows have side by side, and fit into
the memory. What is computed is counted: rows go on in step, each a little further than the next,
all of a pool's memory one cache that drops what was used longest ago. Ours.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from kairos.plan.call_shapes import CallShapes
from kairos.plan.costs.token_steps import ScheduledCall

# A decoding step takes as long as so many prompt tokens: reading the weights against computing
# with them, bytes a second to operations a second, about 300 on accelerators of today.
STEP_TOKENS = 300
# Of the time with as many rows as there may be. What rows have in common beside static beginnings
# is not known before they are, and makes more of them fit.
_CLEARLY = 0.75
_MOST_CALLS = 4_000  # of rows side by side that are reckoned with


def rows_at_once(shapes: CallShapes, kv_tokens: int, most_calls: int) -> int | None:
    """None: as many as there may be. `kv_tokens` and `most_calls`: of all instances together. Takes
    a tenth of a second for a hundred operators."""
    waves = [*_waves(shapes.calls)]
    calls = sum(map(len, waves))
    if not calls:
        return None
    held = sum(map(_held, shapes.calls.values())) / calls
    fit = min(float(most_calls), max(1.0, kv_tokens / max(1.0, held)))
    width = calls / len(waves)
    taken: dict[int, float] = {}
    rows = 1
    while True:
        taken[rows] = _taken(shapes, waves, kv_tokens, rows, min(fit, rows * width))
        if rows * width >= 4 * fit or 2 * rows * calls > _MOST_CALLS:
            break
        rows *= 2
    best = min(taken, key=lambda each: taken[each])
    return best if taken[best] < _CLEARLY * taken[rows] else None


def _taken(
    shapes: CallShapes, waves: Sequence[Sequence[str]], kv_tokens: int, rows: int, at_once: float
) -> float:
    """By a row, in prompt tokens' time."""
    answers = sum(each.completion_tokens for each in shapes.calls.values())
    return computed_tokens(shapes, waves, kv_tokens, rows) + answers / at_once * STEP_TOKENS


def computed_tokens(
    shapes: CallShapes, waves: Sequence[Sequence[str]], kv_tokens: int, rows: int
) -> float:
    """Of a row's prompts, with so many rows side by side that go on for ever: its share of what is
    computed anew while each goes through its calls once more."""
    cache = _Cache(kv_tokens)
    computed = 0
    for step in range(2 * len(waves)):
        for row in range(rows):
            at = step + row * len(waves) // rows
            number = row + at // len(waves) * rows
            for name in waves[at % len(waves)]:
                new = cache.call(number, shapes.calls[name], shapes.varies[name])
                computed += new if step >= len(waves) else 0
    return computed / rows


class _Cache:
    """What was used last, as far as there is room."""

    def __init__(self, kv_tokens: int) -> None:
        self._room = kv_tokens
        self._held: OrderedDict[tuple[int | None, str], int] = OrderedDict()  # longest ago first
        self._answers = 0

    def call(self, row: int, call: ScheduledCall, varies: int) -> int:
        """Tokens of its prompt that are computed. An answer takes room, and nobody finds it but by
        a prompt that is said to have it."""
        found = True
        new = 0
        self._answers += 1
        keys = [(row if at >= varies else None, each.name) for at, each in enumerate(call.prompt)]
        for key, each in zip(keys, call.prompt, strict=True):
            found = found and key in self._held
            if not found:
                new += each.tokens
                self._room += self._held.pop(key, 0)
                self._held[key] = each.tokens
                self._room -= each.tokens
        answer = (row, f"answer {self._answers}")
        self._held[answer] = call.completion_tokens
        self._room -= call.completion_tokens
        for key in reversed(keys):  # the end is dropped first
            self._held.move_to_end(key)
        while self._room < 0 and self._held:
            self._room += self._held.popitem(last=False)[1]
        return new


def _waves(calls: Mapping[str, ScheduledCall]) -> Iterator[list[str]]:
    """Of a row, those that can be made at the same time, one after the other."""
    done: set[str] = set()
    left = dict(calls)
    while left:
        ready = [name for name, each in left.items() if done.issuperset(each.after)]
        assert ready, "calls need each other in a circle"
        yield ready
        done.update(ready)
        for name in ready:
            del left[name]


def _held(call: ScheduledCall) -> int:
    """Tokens, while it runs."""
    return sum(each.tokens for each in call.prompt) + call.completion_tokens
