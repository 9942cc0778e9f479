"""Log errors inside this package, once for each kind; they never disturb the program."""

import logging

logger = logging.getLogger("kairos_client")
_met: set[str] = set()


def met(doing: str, error: BaseException) -> None:
    """Log the first error of an action. `doing`: the action."""
    if doing not in _met:
        _met.add(doing)
        logger.warning("%s failed (only the first failure is logged): %r", doing, error)
