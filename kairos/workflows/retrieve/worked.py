"""What processors did, as whoever counts it is told."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from kairos.core.errors import InvalidRequest

Outcome = Literal["finished", "refused", "failed"]  # refused: what was asked is wrong


class Worked(msgspec.Struct, frozen=True):
    """A batch that a processor was asked for. `items`: texts that were embedded, passages that were
    ranked or put into a collection, vectors that were searched for."""

    kind: str  # of operator
    processor: str  # HOST:PORT of an engine; what keeps collections
    outcome: Outcome
    items: int
    seconds: float


Note = Callable[[Worked], None]


@contextmanager
def noted(note: Note, kind: str, processor: str, items: int) -> Iterator[None]:
    """Tells of the batch that the block is; not of one that nobody waits for any more."""
    began_s = time.monotonic()

    def tell(outcome: Outcome) -> None:
        note(Worked(kind, processor, outcome, items, time.monotonic() - began_s))

    try:
        yield
    except InvalidRequest:
        tell("refused")
        raise
    except Exception:
        tell("failed")
        raise
    tell("finished")
