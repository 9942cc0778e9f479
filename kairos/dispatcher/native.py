"""The compiled arithmetic of `forecast.c`; `KERNEL` is None where it was not compiled, and numpy
does the same.

It is compiled as Kairos is installed (`kairos/native_library.py`). Ours.
"""

import ctypes
from functools import partial

import numpy as np
import numpy.typing as npt

from kairos.native_library import function as function_of
from kairos.native_library import load as load_library

_INT, _FLOAT, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Table(ctypes.Structure):
    """Addresses of columns, a row for each instance; `forecast.c` says what they hold."""

    _fields_ = [
        ("rows", _INT),
        ("values", _ADDRESS),
        ("speeds", _ADDRESS),
        ("kinds", _ADDRESS),
        ("token_lines", _ADDRESS),
        ("prompt_lines", _ADDRESS),
        ("forecasts", _ADDRESS),
        ("versions", _ADDRESS),
        ("forecast_of", _ADDRESS),
        ("forecast_at", _ADDRESS),
    ]


class Wanted(ctypes.Structure):
    """A request that is to be placed."""

    _fields_ = [
        ("prompt_tokens", _FLOAT),
        ("answer_tokens", _FLOAT),
        ("limit", _FLOAT),
        ("curve", _ADDRESS),
        ("width", _FLOAT),
        ("in_use", _ADDRESS),
        ("cached", _ADDRESS),
        ("kept_row", _INT),
        ("kept_tokens", _FLOAT),
        ("reserved_row", _INT),
        ("reserved", _ADDRESS),
        ("waited_us", _FLOAT),
        ("spread", _FLOAT),
        ("alike", _FLOAT),
        ("alike_but_for_load", _FLOAT),
    ]


class Found(ctypes.Structure):
    """Where it could go."""

    _fields_ = [
        ("shares", _ADDRESS),
        ("costs", _ADDRESS),
        ("least_us", _FLOAT),
        ("warm", _INT),
        ("warm_places", _ADDRESS),
    ]


class Kernel:
    """The functions of `forecast.c`. They take arrays by `address`: contiguous ones, of 64-bit
    numbers, that live as long as the call."""

    def __init__(self, library: ctypes.CDLL) -> None:
        function = partial(function_of, library)
        table, wanted, answer = map(ctypes.POINTER, (Table, Wanted, Found))
        self.speeds = function("kairos_speeds", None, table)
        self.stale = function("kairos_stale", _INT, table, _INT, _ADDRESS, _INT, _INT, _ADDRESS)
        self.computed = function("kairos_computed", _INT, table, _INT, _ADDRESS, _INT, _ADDRESS)
        self.headroom = function("kairos_headroom", _FLOAT, table, _INT, _ADDRESS)
        self.forecast = function(
            "kairos_forecast",
            None,
            *(table, _INT, _FLOAT, _ADDRESS, _FLOAT, _FLOAT, _INT, _ADDRESS, _INT),
        )
        self.together = function(
            "kairos_together",
            _INT,
            *(_INT, _ADDRESS, _INT, *[_ADDRESS] * 3, *[_FLOAT] * 4, _ADDRESS),
        )
        self.cost_us = function("kairos_cost_us", _FLOAT, table, wanted, _INT)
        self.room_in_us = function("kairos_room_in_us", _FLOAT, table, wanted, _INT)
        self.choose = function("kairos_choose", _INT, table, wanted, *(_INT, _ADDRESS) * 2, answer)


def address(array: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> int:
    """Of its first element."""
    found: int = array.__array_interface__["data"][0]
    return found


def load() -> Kernel | None:
    library = load_library("kairos.dispatcher", "forecast", ctypes.CDLL)
    return None if library is None else Kernel(library)


KERNEL = load()
