"""Names in the form that Kairos accepts."""

import re

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.:@/+=-]+")
_LONGEST = 128


def plain(text: str | None) -> str | None:
    """Return a name in plain characters: letters, digits and _ . : @ / + = - only.

    It begins with a letter, a digit or _.
    """
    if text is None:
        return None
    return _NOT_PLAIN.sub("-", text).lstrip("-.:@/+=")[:_LONGEST] or None
