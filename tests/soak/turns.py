"""Whose turn it is to be hurt, or to be out of service: never all engines' at once. So it is known
at each moment how many were well, and what these could have served."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec


class Change(msgspec.Struct, frozen=True):
    at_s: float  # since the start
    well: int  # engines, from then on


class Turns:
    def __init__(self, engines: int, now_s: Callable[[], float]) -> None:
        """`now_s`: since the start."""
        self._engines, self._now_s = engines, now_s
        self._away = Counter[int]()  # for how many reasons, by number
        self.changes = [Change(0.0, engines)]

    def draw(self, dice: random.Random) -> int:
        """One without which another is still well, whatever is done to it; from 0."""
        numbers = range(self._engines)
        well = {each for each in numbers if not self._away[each]}
        return dice.choice([each for each in numbers if well - {each}] or [*numbers])

    @contextmanager
    def away(self, number: int) -> Iterator[None]:
        """Within the block it is not well."""
        self._away[number] += 1
        self._note()
        try:
            yield
        finally:
            self._away[number] -= 1
            self._note()

    def _note(self) -> None:
        well = sum(not self._away[each] for each in range(self._engines))
        self.changes.append(Change(self._now_s(), well))
