"""How a measurement ends that is a command of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kairos.core import KairosError


@contextmanager
def ending(name: str) -> Iterator[None]:
    """What cannot go on, or is interrupted, ends the command with a status that says so."""
    try:
        yield
    except KairosError as error:
        sys.exit(f"experiments.{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
