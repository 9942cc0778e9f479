"""What tenants, and their apps and keys, may use at most: calls and tokens per minute, tokens per
day, calls and workflows at once.

A call takes its prompt's tokens and those that its answer is expected to have when it arrives; at
its end what it took is put right. So answers under way can go beyond a limit by what was expected
wrongly, and the next calls wait until that has flowed in. All this is counted where a pool's
decisions are made, so it holds for all its processes together.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kairos.entitlements import Quota
from kairos.model import Request
from kairos.rate_limits import RateLimits, scarcer
from kairos.scheduler.meter import Meter, QuotaExceeded
from kairos.workflow_tracker import IDLE_US, WorkflowKey, workflow_key


class _Taken(msgspec.Struct, frozen=True, gc=False):
    """By a call that is here."""

    tokens: int
    meters: tuple[Meter, ...]


class _Meters:
    """Of one tenant."""

    __slots__ = ("all", "of_apps", "of_keys", "whole")

    def __init__(self, meters: Sequence[Meter]) -> None:
        self.all = meters
        by_app = {each.quota.app: each for each in meters if each.quota.key is None}
        self.whole = by_app.pop(None, None)  # of the tenant as a whole
        self.of_apps = by_app
        self.of_keys: dict[str | None, Meter] = {
            each.quota.key: each for each in meters if each.quota.key is not None
        }

    def that_hold(self, request: Request) -> Iterator[Meter]:
        for meter in (
            self.whole,
            self.of_apps.get(request.app) if self.of_apps else None,
            self.of_keys.get(request.key) if self.of_keys else None,
        ):
            if meter is not None:
                yield meter


class Quotas:
    """All that there are."""

    def __init__(self, quotas: Sequence[Quota], idle_us: int = IDLE_US) -> None:
        """After `idle_us` of silence a workflow has ended."""
        of: dict[str, list[Meter]] = {}
        for each in quotas:
            of.setdefault(each.tenant, []).append(Meter(each, idle_us))
        self._of_tenant = {tenant: _Meters(meters) for tenant, meters in of.items()}
        self._taken: dict[str, _Taken] = {}  # by id of the call

    def _of(self, request: Request) -> tuple[Meter, ...]:
        meters = self._of_tenant.get(request.tenant)
        return () if meters is None else tuple(meters.that_hold(request))

    def check(self, request: Request, at: int) -> None:
        """Raises QuotaExceeded: with the request, which arrives, more would be used."""
        try:
            for meter in self._of(request):
                meter.check(workflow_key(request), _tokens(request), at)
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
            tokens, workflow = _tokens(request), workflow_key(request)
            self._taken[request.id] = _Taken(tokens, found)
            for meter in found:
                meter.begin(workflow, tokens, at)

    def ended(self, request: Request, used_tokens: int, at: int) -> None:
        """`used_tokens`: of its prompt and answer, as far as it ran; 0: it never did."""
        taken = self._taken.pop(request.id, None)
        if taken is not None:
            workflow, more_tokens = workflow_key(request), used_tokens - taken.tokens
            for meter in taken.meters:
                meter.end(workflow, more_tokens, at, has_run=used_tokens > 0)

    def workflow_ended(self, workflow: WorkflowKey) -> None:
        meters = self._of_tenant.get(workflow[0])
        for meter in () if meters is None else meters.all:
            meter.workflow_ended(workflow)


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens
