"""A waiting request, and its entries in the heaps of its queue."""

from collections.abc import Hashable
from typing import Any

from kairos.core.model import Request
from kairos.core.scheduler.policies import Key

# Typed as any tuple: compiled code copies tuples of known length, and the heaps detect changed
# entries by identity.
KeyEntry = tuple[Any, ...]  # key, number of arrival, request id
NumberEntry = tuple[Any, ...]  # number, number of arrival, request id


class WaitingRequest:
    overdue_at: int | None = None  # order among overdue calls; None: not overdue
    aside: bool = False  # quarantined: not dispatched for now
    impatient_at: int | None = None  # end of the maximum wait set by the policy
    passed_over_at: int | None = None  # when it was first in the queue and did not fit

    def __init__(
        self,
        request: Request,
        seq: int,
        key: Key,
        epoch: int,
        state: Hashable,
        work_us: int,
    ) -> None:
        self.request = request
        self.seq = seq
        self.key = key
        self.epoch = epoch  # epoch of the estimates that the key was computed from
        self.state = state  # the policy's state of the workflow
        self.work_us = work_us  # predicted latency of the call alone, at its arrival

    @property
    def is_bounced(self) -> bool:
        """Return whether it was returned by an instance, or found on arrival to have to run alone.

        Such requests have lower numbers than all others.
        """
        return self.seq < 0
