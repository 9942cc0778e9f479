"""How much one caller may use of what all callers share.

At most so many times what is free: 9 times, where one alone may use 9/10. So there is always room
for another, nobody has to be counted or configured, and what is used by one caller alone is
nearly all of it. As others come, less is free, so each may use less: n callers that all want more
than there is come to have the same, together 9n/(9n + 1). Choudhury and Hahne, "Dynamic queue
length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2),
1998.
"""

from kairos.core.errors import KairosError

ALONE = 0.9  # of all, if nobody else uses any


def is_within_share(used: float, free: float, alone: float = ALONE) -> bool:
    """Whether a caller may use so much, where so much is free with that. `alone`: from 0 to 1; with
    1 it may use all that is free."""
    return free >= 0 and used * (1 - alone) <= free * alone


class ShareUsed(KairosError):
    """The caller has as many connections, bytes in flight or waiting calls as one may have beside
    all others (`caller_share`)."""

    status = 429
    code = "caller_share"

    def __init__(self, what: str, retry_after_s: int = 1) -> None:
        super().__init__(f"the caller {what} already, as much as one may have; try later")
        self.retry_after_s = retry_after_s
