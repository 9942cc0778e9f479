"""Members of a body that is too large to be decoded as a whole.

`reading.c` finds them, and checks that the whole body is well formed without creating objects. Each
member is checked against its bound before it is decoded. Not in the paper.
"""

import ctypes
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kairos.core import InvalidRequest
from kairos.request.native import BESIDE, READING, Member, Reading
from kairos.request.parameters import MOST_ITEMS, TOO_LONG, beginning, wrong
from kairos.request.shape import check_utf8, too_deep

LARGE_BYTES = 1 << 18  # a smaller body is decoded whole: takes up to 10 ms, whatever it holds
BESIDE_BYTES = 1 << 20  # a larger body is read in a thread
VALUE_BYTES = 1 << 20  # of a parameter that is no list
_TOO_DEEP, _NO_OBJECT, _BROKEN_OFF = -1, -2, -3  # as `reading.c` has them
_SPACE = b" \t\r\n"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_COMMA = re.compile(rb"[ \t\r\n]*+,")


def reading_of(size_bytes: int) -> Reading | None:
    """Return the compiled functions for a text of that size, or None."""
    return BESIDE if size_bytes > BESIDE_BYTES else READING


def count_values(json: bytes) -> int:
    """Return an upper bound of the number of objects that decoding a JSON text would create."""
    compiled = reading_of(len(json))
    if compiled is not None:
        return int(compiled.values(json, len(json)))
    outside = _STRING.sub(b"", json)
    return 1 + sum(map(outside.count, (b",", b"[", b"{")))


class MemberNames:
    """Names of members to find in objects."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        spelt = (each.encode() for each in self._names)
        self._spelt = b"".join(len(each).to_bytes(2, "little") + each for each in spelt)

    def places(self, content: bytes, compiled: Reading) -> dict[str, Member]:
        """Return the places of an object's named members, in its order.

        Raises:
            InvalidRequest: The object is malformed.
        """
        return self.places_and_count(content, compiled)[0]

    def places_and_count(self, content: bytes, compiled: Reading) -> tuple[dict[str, Member], int]:
        """Return the same, and the number of all members.

        Raises:
            InvalidRequest: The object is malformed.
        """
        check_utf8(content, compiled)
        found = (Member * (len(self._names) + 1))()
        arguments = self._spelt, len(self._names), ctypes.addressof(found)
        end = compiled.members(content, len(content), *arguments)
        if end != len(content):
            raise _malformed(content, end)
        named = zip(self._names, found, strict=False)
        there = [(name, place) for name, place in named if place.start >= 0]
        return dict(sorted(there, key=lambda each: _key_of(each[1]))), found[-1].items


class Fields:
    """Members of a body that are fields of a struct."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        fields = msgspec.structs.fields(struct)
        self._raw = {each.name for each in fields if each.type is msgspec.Raw}
        self._names = MemberNames(each.name for each in fields)

    def find_members(self, content: bytes, compiled: Reading) -> "Found":
        """Find the members. Raises InvalidRequest: The body is malformed."""
        raw, small, beyond = {}, [], None
        for name, place in self._names.places(content, compiled).items():
            if name in self._raw:
                raw[name] = msgspec.Raw(content[place.start : place.end])
            elif beyond is None and (beyond := _beyond_bound(name, place)) is None:
                value = content[place.start : place.end]
                small.append(b'"%b":%b' % (name.encode(), value))
        return Found(b"{%b}" % b",".join(small), raw, beyond)

    def without(self, names: Iterable[str], content: bytes, compiled: Reading) -> bytes:
        """Return the body without these members, every other byte unchanged.

        Raises:
            InvalidRequest: A member appears more than once.
        """
        places = self._names.places(content, compiled)
        gone = {name: places[name] for name in names if name in places}
        for place in sorted(gone.values(), key=_key_of, reverse=True):
            content = _cut(content, place)
        left = self._names.places(content, compiled)
        for name in gone:
            if name in left:
                raise InvalidRequest(f"'{name}' must not be there more than once", name)
        return content


class Found(NamedTuple):
    """Members of a body.

    `small` is an object of the members to decode; `raw` has those kept as written; `beyond` is the
    error of the first member beyond its bound, after which none is decoded.
    """

    small: bytes
    raw: dict[str, msgspec.Raw]
    beyond: InvalidRequest | None


def _malformed(content: bytes, end: int) -> InvalidRequest:
    if end == _TOO_DEEP:
        return too_deep()
    if end == _NO_OBJECT:
        was = beginning(content.lstrip(_SPACE)[:1])
        return InvalidRequest(f"the body cannot be read: it must be an object, but is {was}")
    if end == _BROKEN_OFF:
        return InvalidRequest("the body cannot be read: Input data was truncated")
    return InvalidRequest(f"the body cannot be read: JSON is malformed (byte {end})")


def _beyond_bound(name: str, place: Member) -> InvalidRequest | None:
    most = MOST_ITEMS.get(name)
    if most is not None and place.items > most:
        return wrong(name, TOO_LONG)
    if most is None and place.end - place.start > VALUE_BYTES:
        return InvalidRequest(f"'{name}' has more than {VALUE_BYTES} bytes", name)
    return None


def _key_of(place: Member) -> int:
    key: int = place.key
    return key


def _cut(content: bytes, place: Member) -> bytes:
    """Cut a member out, with the comma after it, or before it if it is the last."""
    if follows := _COMMA.match(content, place.end):
        return content[: place.key] + content[follows.end() :]
    start = content.rfind(b",", 0, place.key)
    return content[: start if start >= 0 else place.key] + content[place.end :]
