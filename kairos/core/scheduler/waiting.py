"""A request that waits, and how it stands in the heaps of its queue."""

from collections.abc import Hashable
from typing import Any

from kairos.core.model import Request
from kairos.core.scheduler.policies import Key

# As any tuple: of one with a known length compiled code makes a new one each time, and the heaps
# tell by identity whether an entry has changed.
KeyEntry = tuple[Any, ...]  # key, number of arrival, request id
NumberEntry = tuple[Any, ...]  # number, number of arrival, request id


class WaitingRequest:
    overdue_at: int | None = None  # overdue calls go in this order; None: it is not
    aside: bool = False  # it has no turn for now
    impatient_at: int | None = None  # when the policy lets it wait no more
    passed_over_at: int | None = None  # when it was the first, and did not fit, for the first time

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
        self.epoch = epoch  # of the knowledge that the key comes from
        self.state = state  # the policy's
        self.work_us = work_us  # predicted, of the call alone, when it arrived

    @property
    def is_bounced(self) -> bool:
        """By an instance; or it was found on arrival that it must run alone. Such have numbers
        below all others'."""
        return self.seq < 0
