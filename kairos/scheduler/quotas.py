"""What tenants, and their apps, may use at most: calls and tokens per minute, tokens per day, calls
at once.

A call takes its prompt's tokens and those that its answer is expected to have when it arrives; at
its end what it took is put right. So answers under way can go beyond a limit by what was expected
wrongly, and the next calls wait until that has flowed in. All this is counted where a pool's
decisions are made, so it holds for all its processes together.
"""

from collections.abc import Sequence

from kairos.model import Request
from kairos.rate_limits import RateLimits, scarcer
from kairos.scheduler.meter import Meter, Quota, QuotaExceeded


class Quotas:
    """All that there are."""

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self._meters = {(each.tenant, each.app): Meter(each) for each in quotas}
        self._taken: dict[str, int] = {}  # tokens, by id of the call

    def _of(self, request: Request) -> list[Meter]:
        meters, tenant = self._meters, request.tenant
        keys = dict.fromkeys(((tenant, None), (tenant, request.app)))
        return [meters[each] for each in keys if each in meters]

    def check(self, request: Request, at: int) -> None:
        """Raises QuotaExceeded: with the request, which arrives, more would be used."""
        try:
            for meter in self._of(request):
                meter.check(_tokens(request), at)
        except QuotaExceeded as error:
            error.limits = self.left(request, at)
            raise

    def left(self, request: Request, at: int) -> RateLimits | None:
        """To whoever made the request; None: nothing of what it may use is limited so."""
        left = RateLimits()
        for meter in self._of(request):
            more = meter.left(at)
            left = RateLimits(
                scarcer(left.requests, more.requests), scarcer(left.tokens, more.tokens)
            )
        return left if left != RateLimits() else None

    def arrived(self, request: Request, at: int) -> None:
        """It was let in."""
        if found := self._of(request):
            tokens = self._taken[request.id] = _tokens(request)
            for meter in found:
                meter.begin(tokens, at)

    def ended(self, request: Request, used_tokens: int, at: int) -> None:
        """`used_tokens`: of its prompt and answer, as far as it ran."""
        taken = self._taken.pop(request.id, None)
        if taken is not None:
            for meter in self._of(request):
                meter.end(used_tokens - taken, at)


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens
