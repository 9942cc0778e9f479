"""Compiled arithmetic of `forecast.c`. Not in the paper.

It is compiled when Kairos is installed (`kairos/core/native_library.py`). Without it, `KERNEL` has
the value None, and numpy computes the same.
"""

import ctypes
from functools import partial
from struct import Struct

import numpy as np
import numpy.typing as npt

from kairos.core.native_library import declare_function as function_of
from kairos.core.native_library import load_library

_INT, _FLOAT, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p

# Layout of the structures of `forecast.c` that are written here, in numbers of 64 bits.
# An instance: its facts, including prompts under way, at offset 0; then its health.
FACTS, HEALTH = Struct("5d4q3d3q3d"), Struct("2d")
COMPUTING, NUMBER = Struct("3d"), Struct("q")
KIND_PLACE = 5 * 8
COMPUTING_PLACE, HEALTH_PLACE = FACTS.size - COMPUTING.size, FACTS.size
CALL = Struct("7dq")  # a call in flight
LINES = Struct("6d")  # the speed of a kind of instance
POOL = Struct("6q5d2qd")
WANTED = Struct("3dq2qqdq")
WAITS_PLACE = WANTED.size - 8
ASKED = Struct("6q")
SLOTS = 38
RESERVED_PLACE = ASKED.size
FOUND_PLACE = RESERVED_PLACE + 8 * SLOTS
CHOSEN_PLACE = FOUND_PLACE + 8
ASKED_SIZE = CHOSEN_PLACE + 8

NOWHERE, WARM = -1, -2
COMPUTING_UNKNOWN = NEVER = -(1 << 63)


class Kernel:
    """Functions of `forecast.c`.

    They take structures and arrays by address; these must be contiguous and outlive the call.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        function = partial(function_of, library)
        self.instance_bytes: int = function("kairos_bytes_of_instance", _INT)()
        self.draw = function("kairos_draw", _FLOAT, _INT, _ADDRESS, _ADDRESS)
        self.speeds = function("kairos_speeds", None, _ADDRESS)
        self.headroom = function("kairos_headroom", _FLOAT, _ADDRESS, _ADDRESS)
        self.forecast = function("kairos_forecast", _ADDRESS, _ADDRESS, _INT, _INT)
        self.choose = function("kairos_choose", _INT, *[_ADDRESS] * 3)
        self.refused = function("kairos_refused", _INT, *[_ADDRESS] * 2, _INT, *[_ADDRESS] * 2)
        self.reserve = function("kairos_reserve", _INT, *[_ADDRESS] * 4)


class Block:
    """Zeroed memory with a fixed address for the kernel."""

    def __init__(self, size: int) -> None:
        self.bytes = ctypes.create_string_buffer(size)
        self.at = ctypes.addressof(self.bytes)

    def grown(self, size: int) -> "Block":
        """Return a copy with `size` more bytes."""
        block = Block(len(self.bytes) + size)
        ctypes.memmove(block.at, self.at, len(self.bytes))
        return block


def address(array: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> int:
    """Return the address of the array's first element."""
    found: int = array.__array_interface__["data"][0]
    return found


def load() -> Kernel | None:
    library = load_library("kairos.core.dispatcher", "forecast", ctypes.PyDLL)
    return None if library is None else Kernel(library)


KERNEL = load()
