"""Texts that stand for values held by a processor.

A text `held:ID` is neither a vector nor a collection of a row. The id is the signature of the call
that made the value, so a call with it as an argument has the same signature wherever the value is;
a journal has `held:ID@HOST:PORT`, which also says where that was.
"""

import re
from collections.abc import Iterator, Mapping

_HELD = re.compile(r"held:([0-9a-f]{32})(?:@([\w.:\[\]-]{1,255}))?", re.ASCII)


def held_text(value_id: str, place: str | None = None) -> str:
    return f"held:{value_id}" if place is None else f"held:{value_id}@{place}"


def held_id(value: object) -> str | None:
    """Return the id in a text `held:ID`; None for any other value, the journals' form, too."""
    found = _HELD.fullmatch(value) if isinstance(value, str) else None
    return None if found is None or found[2] is not None else found[1]


def held_at(value: object) -> tuple[str, str] | None:
    """Return the id and the place in a journal's text; None for any other value."""
    found = _HELD.fullmatch(value) if isinstance(value, str) else None
    return None if found is None or found[2] is None else (found[1], found[2])


def held_in(arguments: Mapping[str, object]) -> Iterator[str]:
    """Yield the ids of held values in a processor's arguments."""
    for name in ("vectors", "collection"):
        value = arguments.get(name)
        for each in value if isinstance(value, list) else (value,):
            if (found := held_id(each)) is not None:
                yield found


def fill_held(arguments: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """Return a processor's arguments with these values, by id, in place of their texts."""

    def of(argument: object) -> object:
        found = held_id(argument)
        return argument if found is None else values[found]

    filled = dict(arguments)
    for name in ("vectors", "collection"):
        argument = arguments.get(name)
        if isinstance(argument, list):
            filled[name] = [of(each) for each in argument]
        elif argument is not None:
            filled[name] = of(argument)
    return filled
