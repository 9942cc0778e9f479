"""Batches of work of processors, as passed to their counters."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from kairos.core import InvalidRequest

Outcome = Literal["finished", "refused", "failed"]  # refused: the request is wrong


class Worked(msgspec.Struct, frozen=True):
    """Batch of work of a processor.

    `items`: texts embedded, passages ranked or ingested, or vectors searched for.
    """

    kind: str  # of operator
    processor: str  # HOST:PORT of an engine, or the store of collections
    outcome: Outcome
    items: int
    seconds: float


Note = Callable[[Worked], None]


@contextmanager
def noted(note: Note, kind: str, processor: str, items: int) -> Iterator[None]:
    """Report the batch that the block performs; a cancelled one is not reported."""
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
