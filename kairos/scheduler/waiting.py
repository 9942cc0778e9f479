"""A request that waits, and how it stands in the heaps of its queue."""

from collections.abc import Hashable

import msgspec

from kairos.model import Request
from kairos.scheduler.policies import Key

KeyEntry = tuple[Key, int, str]  # key, number of arrival, request id
NumberEntry = tuple[float, int, str]


class WaitingRequest(msgspec.Struct, gc=False):
    request: Request
    seq: int
    key: Key
    epoch: int  # of the knowledge that the key comes from
    state: Hashable  # the policy's
    work_us: int  # predicted, of the call alone, when it arrived
    overdue: bool = False
    aside: bool = False  # it has no turn for now
    passed_over_at: int | None = None  # when it was the first, and did not fit, for the first time

    @property
    def is_bounced(self) -> bool:
        """By an instance; or it was found on arrival that it must run alone. Such have numbers
        below all others'."""
        return self.seq < 0
