"""What the compiled placement has in memory that only the kernel reads."""

import ctypes

import numpy as np

from kairos.core import SLOTS
from kairos.core.dispatcher.native import RESERVED_PLACE


def forecast(placement, instance, at):
    """3 x SLOTS."""
    choice = placement._compiled
    choice._table.renew(at)
    row = choice._table.row(instance.id)
    found = choice._kernel.forecast(choice._table.pool_at, row, at)
    return np.array((ctypes.c_double * (3 * SLOTS)).from_address(found)).reshape(3, SLOTS)


def reserved(placement):
    """Where, by row, and what by slot; None: nothing is."""
    choice = placement._compiled
    if choice._reserved_row < 0:
        return None
    room = np.frombuffer(choice._asked.bytes, np.float64, SLOTS, RESERVED_PLACE)
    return choice._reserved_row, room
