"""The compiled functions of `reading.c`; `READING` is None where it was not compiled, and Python
and numpy find the same.

They take bytes as they are, and arrays by address, that live as long as the call. No other thread
runs meanwhile: the longest that they read takes milliseconds, and they mostly take a few
microseconds, after which the event loop should not have to wait for its turn. Ours.
"""

import ctypes
from functools import partial

from kairos.native_library import function as function_of
from kairos.native_library import load

_INT, _BYTES, _ADDRESS = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p


class PassageTable(ctypes.Structure):
    """Addresses of columns, a row for each slot."""

    _fields_ = [
        ("slots", _INT),
        ("hashes", _ADDRESS),
        ("owners", _ADDRESS),
        ("waiting", _ADDRESS),
        ("tenants", _ADDRESS),
        ("held", _ADDRESS),
    ]


class Reading:
    """The functions, of which `reading.c` says what they do."""

    def __init__(self, library: ctypes.CDLL) -> None:
        function = partial(function_of, library)
        table, count, scope = _ADDRESS, _INT, ctypes.c_uint32
        found = (_BYTES, count)
        self.is_utf8 = function("kairos_is_utf8", _INT, *found)
        self.depth = function("kairos_depth", _INT, *found)
        self.is_list_of_items = function(
            "kairos_is_list_of_items", _INT, *found, *(_INT, _INT, _INT)
        )
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


def _load() -> Reading | None:
    library = load("kairos.live.request", "reading", ctypes.PyDLL)
    return None if library is None else Reading(library)


READING = _load()
