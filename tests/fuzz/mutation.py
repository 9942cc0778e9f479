"""Changes JSON as JSON: what is changed byte by byte alone is hardly ever an object any more."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

_VALUES = [
    "null", "true", "false", "0", "1", "-1", "0.5", "1e300", "9223372036854775808", "1" + "0" * 30,
    '""', '"a"', '"null"', r'"\ud800"', r'"\u00e9\u2028"', '"[DONE]"', '"a b"', f'"{"x" * 130}"',
    "[]", "{}", "[[]]", "[null]", "[1,2,3]", '{"a":[]}',
]  # fmt: skip
# Where JSON may stand: the whole, behind the headers, in a line of a stream.
_PLACES = re.compile(rb"\A(?s:.)+|(?<=\n\n)(?s:.)+|(?<=data:)[^\r\n]+")


def mutated(
    data: bytes, max_size: int, seed: int, by_bytes: Callable[[bytes, int], bytes]
) -> bytes:
    random = Random(seed)
    place = random.choice([*_PLACES.finditer(data), None])
    try:
        changed = None if place is None else _changed(place[0], random)
    except (ValueError, RecursionError):  # no JSON, or very deep
        changed = None
    if place is None or changed is None:
        return by_bytes(data, max_size)
    return (data[: place.start()] + changed + data[place.end() :])[:max_size]


def _changed(text: bytes, random: Random) -> bytes | None:
    """None: there is nothing in it to change."""
    value = json.loads(text.decode())
    if not isinstance(value, dict | list):
        return None
    for _ in range(random.choice((1, 1, 2, 5))):
        _change(value, random)
    options = random.choice(({}, {"separators": (",", ":")}, {"indent": 1}))
    changed = json.dumps(value, ensure_ascii=random.random() < 0.5, **options)
    return changed.encode("utf-8", random.choice(("replace", "surrogatepass")))


def _change(value: Any, random: Random) -> None:
    """Something in it is replaced, removed, repeated, put into a list, or put elsewhere."""
    parts = _parts(value)
    if not parts:
        return
    (holder, key), (other, at) = random.choice(parts), random.choice(parts)
    match random.randrange(5):
        case 0:
            holder[key] = json.loads(random.choice(_VALUES))
        case 1:
            del holder[key]
        case 2:
            holder[key] = [holder[key]]
        case 3:
            holder[key] = json.loads(json.dumps(other[at]))
        case _ if isinstance(holder, dict):
            holder[random.choice(parts)[1] if random.random() < 0.5 else at] = holder[key]
        case _:
            holder.insert(key, holder[key])


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Every place in it, as what holds it and where in that."""
    keys = range(len(value)) if isinstance(value, list) else list(value)
    within = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            within += _parts(value[key])
    return within
