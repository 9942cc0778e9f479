"""Compiled functions of `reading.c`; `READING` stays None without them.

Python and numpy then give the same results. The functions take bytes as they are, and arrays by
address, which must live as long as the call. The functions keep the GIL: they mostly take a few
microseconds, and the event loop should not have to wait for it afterwards. A second set, for large
texts in threads, releases it. Not in the paper.
"""

import ctypes
from functools import partial

from kairos.core import declare_function as function_of
from kairos.core import load_library

_INT, _BYTES, _ADDRESS = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p


class PassageTable(ctypes.Structure):
    """Addresses of columns, with a row for each slot."""

    _fields_ = [
        ("slots", _INT),
        ("hashes", _ADDRESS),
        ("owners", _ADDRESS),
        ("waiting", _ADDRESS),
        ("tenants", _ADDRESS),
        ("held", _ADDRESS),
    ]


class Judged(ctypes.Structure):
    """Verdict on a list: item, part and byte of the first error, from 0; and counts."""

    _fields_ = [(name, _INT) for name in ("item", "part", "place", "items", "parts", "media")]


class Member(ctypes.Structure):
    """Places of a member's name and value, and the number of its items.

    `start` -1: the member is missing.
    """

    _fields_ = [(name, _INT) for name in ("key", "start", "end", "items")]


class Reading:
    """The functions, which `reading.c` documents."""

    def __init__(self, library: ctypes.CDLL) -> None:
        function = partial(function_of, library)
        table, count, scope = _ADDRESS, _INT, ctypes.c_uint32
        found = (_BYTES, count)
        self.is_utf8 = function("kairos_is_utf8", _INT, *found)
        self.depth = function("kairos_depth", _INT, *found)
        self.values = function("kairos_values", _INT, *found)
        self.judge_items = function("kairos_judge_items", _INT, *found, _INT, _ADDRESS)
        self.judge_prompts = function("kairos_judge_prompts", _INT, *found, _ADDRESS)
        self.without_media = function("kairos_without_media", _INT, *found, _ADDRESS)
        self.members = function("kairos_members", _INT, *found, _BYTES, count, _ADDRESS)
        self.is_token_ids = function("kairos_is_token_ids", _INT, *found, _INT)
        self.masked = function("kairos_masked", _INT, _BYTES, count, _ADDRESS)
        self.passages = function("kairos_passages", _INT, _BYTES, count, _ADDRESS)
        self.passages_of_reply = function(
            "kairos_passages_of_reply", _INT, table, *(_BYTES, count), scope, _ADDRESS
        )
        self.carried = function("kairos_carried", _INT, table, *found, scope, *(_ADDRESS, _ADDRESS))
        self.remember = function(
            "kairos_remember",
            None,
            *(table, *found, scope, _INT, _INT, _BYTES, count, _ADDRESS, _ADDRESS),
        )


def _load(kind: type[ctypes.CDLL]) -> Reading | None:
    library = load_library("kairos.request", "reading", kind)
    return None if library is None else Reading(library)


READING, BESIDE = _load(ctypes.PyDLL), _load(ctypes.CDLL)
