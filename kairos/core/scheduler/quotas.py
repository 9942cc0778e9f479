"""Quotas of tenants and of their apps and keys.

Limits are calls and tokens per minute, tokens per day, and calls and workflows at once. On arrival
a call is charged its prompt's tokens and its answer's expected tokens; at its end the charge is
corrected. So answers under way can exceed a limit by the prediction error, and the next calls wait
until that has flowed in again. Quotas are counted where a pool's decisions are made, so they cover
all its processes together.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kairos.core.entitlements import Quota
from kairos.core.model import Request
from kairos.core.rate_limits import RateLimits, scarcer
from kairos.core.scheduler.meter import Meter
from kairos.core.scheduler.quota_exceeded import QuotaExceeded
from kairos.core.workflow_tracker import IDLE_US, WorkflowKey, workflow_key

Subject = tuple[str, str | None, str | None]  # tenant, app, key


class _Meters:
    """Meters of one tenant."""

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
    """Quotas of all tenants."""

    def __init__(self, idle_us: int = IDLE_US) -> None:
        """Start without quotas.

        Args:
            idle_us: silence after which a workflow has ended.
        """
        self._idle_us = idle_us
        self._of_tenant: dict[str, _Meters] = {}
        self._taken: dict[str, tuple[tuple[Meter, int], ...]] = {}  # tokens charged, by call id

    def change(self, quotas: Sequence[Quota], here: Sequence[Request], at: int) -> None:
        """Replace the quotas.

        Usage so far counts against the new quota of the same tenant, app or key. Calls at once are
        all requests that are here.

        Args:
            quotas: the new quotas.
            here: requests in flight.
            at: current time.
        """
        known = {
            _subject(meter.quota): meter for each in self._of_tenant.values() for meter in each.all
        }
        self._of_tenant = self._meters(quotas, known, here, at)
        taken = {}
        for request in here:
            before = dict(self._taken.get(request.id, ()))
            if meters := self._of(request):
                taken[request.id] = tuple((meter, before.get(meter, 0)) for meter in meters)
        self._taken = taken

    def _meters(
        self,
        quotas: Sequence[Quota],
        known: dict[Subject, Meter],
        here: Sequence[Request],
        at: int,
    ) -> dict[str, _Meters]:
        calls: dict[Subject, list[WorkflowKey]] = defaultdict(list)
        for request in here:
            for subject in _subjects(request):
                calls[subject].append(workflow_key(request))
        of: dict[str, list[Meter]] = defaultdict(list)
        for quota in quotas:
            subject = _subject(quota)
            if (meter := known.get(subject)) is not None:
                meter.change(quota, calls[subject], at)
            else:
                meter = Meter(quota, self._idle_us, calls[subject])
            of[quota.tenant].append(meter)
        return {tenant: _Meters(meters) for tenant, meters in of.items()}

    def _of(self, request: Request) -> tuple[Meter, ...]:
        meters = self._of_tenant.get(request.tenant)
        return () if meters is None else tuple(meters.that_hold(request))

    def check(self, request: Request, at: int) -> None:
        """Check whether an arriving request stays within the quotas.

        Raises:
            QuotaExceeded: it would exceed one.
        """
        try:
            for meter in self._of(request):
                meter.check(workflow_key(request), _tokens(request), at)
        except QuotaExceeded as error:
            error.limits = self.left(request, at)
            raise

    def left(self, request: Request, at: int) -> RateLimits | None:
        """Return what the caller may still use; None if its rates are not limited."""
        left = RateLimits()
        for meter in self._of(request):
            more = meter.left(at)
            left = RateLimits(
                scarcer(left.requests, more.requests), scarcer(left.tokens, more.tokens)
            )
        return left if left != RateLimits() else None

    def arrived(self, request: Request, at: int) -> None:
        """Charge a request that was admitted."""
        if found := self._of(request):
            tokens, workflow = _tokens(request), workflow_key(request)
            self._taken[request.id] = tuple((meter, tokens) for meter in found)
            for meter in found:
                meter.begin(workflow, tokens, at)

    def ended(self, request: Request, used_tokens: int, at: int) -> None:
        """Correct the charge of a call at its end.

        Args:
            request: the call.
            used_tokens: tokens of its prompt and answer as far as it ran; 0 if it never ran.
            at: current time.
        """
        workflow, has_run = workflow_key(request), used_tokens > 0
        for meter, tokens in self._taken.pop(request.id, ()):
            meter.end(workflow, used_tokens - tokens, at, has_run=has_run)

    def workflow_ended(self, workflow: WorkflowKey) -> None:
        meters = self._of_tenant.get(workflow[0])
        for meter in () if meters is None else meters.all:
            meter.workflow_ended(workflow)


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens


def _subject(quota: Quota) -> Subject:
    return quota.tenant, quota.app, quota.key


def _subjects(request: Request) -> set[Subject]:
    """Return the subjects of all quotas that may apply to the request."""
    tenant = request.tenant
    return {(tenant, None, None), (tenant, request.app, None), (tenant, None, request.key)}
