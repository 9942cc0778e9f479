"""What somebody is told who has used all that a quota allows."""

from kairos.core.entitlements import Quota
from kairos.core.errors import KairosError


class QuotaExceeded(KairosError):
    """The tenant, or its app or key, has used what its quota allows. `Retry-After` says when there
    is more of it."""

    status = 429
    code = "quota_exceeded"

    def __init__(self, quota: Quota, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{quota.whose}: the quota of {limit} {what} is used up; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s
