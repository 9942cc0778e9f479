"""What goes wrong inside of this package is logged once, and disturbs nothing."""

import logging

logger = logging.getLogger("kairos_client")
_met: set[str] = set()


def met(doing: str, error: BaseException) -> None:
    """`doing`: what was tried; the log gets the first error in each."""
    if doing not in _met:
        _met.add(doing)
        logger.warning("%s failed, and is left out from now on: %r", doing, error)
