"""Fair share: how much one caller may use of a shared resource.

A caller may use at most a multiple of what is free: 9 times, if one alone may use 9/10. So there is
always capacity for another caller, without counting or configuring callers, and a single caller can
use nearly all. With more callers less is free, so each may use less: n callers that all want more
than exists converge to equal parts, together 9n/(9n + 1). Choudhury and Hahne, "Dynamic queue
length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2),
1998.
"""

from kairos.core.errors import KairosError

LONE_TENANT_SHARE = 0.9  # share of a caller if no other uses any


def is_within_share(used: float, free: float, alone: float = LONE_TENANT_SHARE) -> bool:
    """Return whether a caller may use `used` if `free` is left for all after that.

    `alone` is the share of a caller that is alone, from 0 to 1; with 1 it may use all.
    """
    return free >= 0 and used * (1 - alone) <= free * alone


class ShareUsed(KairosError):
    """The caller has reached its share of connections, bytes in flight or waiting calls.

    See `caller_share`.
    """

    status = 429
    code = "caller_share"

    def __init__(self, what: str, retry_after_s: int = 1) -> None:
        super().__init__(f"the caller {what} already, the maximum for one caller; try later")
        self.retry_after_s = retry_after_s
