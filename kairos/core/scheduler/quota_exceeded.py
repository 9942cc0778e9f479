"""Error for calls beyond a quota."""

from kairos.core.entitlements import Quota
from kairos.core.errors import KairosError


class QuotaExceeded(KairosError):
    """The quota of the tenant, its app or its key is used up.

    `Retry-After` gives the seconds until more is available.
    """

    status = 429
    code = "quota_exceeded"

    def __init__(self, quota: Quota, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{quota.whose}: the quota of {limit} {what} is used up; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s
