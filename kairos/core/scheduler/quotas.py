"""Quotas of tenants and of their apps and keys.

Limits are calls and tokens per minute, tokens per day, and calls and workflows at once. On arrival
a call is charged its prompt's tokens and its answer's expected tokens; at its end the charge is
corrected. So answers under way can exceed a limit by the prediction error, and the next calls wait
until that has flowed in again. Quotas are counted where a pool's decisions are made, so they cover
all its processes together.

Limits per minute are token buckets that hold a minute's worth: this much may come at once, later as
much as flows in (Turner, "New directions in communications", IEEE Communications 24 (10), 1986).
Days are in UTC.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence

from kairos.core.entitlements import Quota, RateLimit, RateLimits, scarcer
from kairos.core.errors import QuotaExceeded
from kairos.core.model import SECOND, Request
from kairos.core.workflow_tracker import IDLE_US, WorkflowKey, workflow_key

_DAY_US = 86_400 * SECOND
_PARTS = 60 * SECOND  # parts per call or token, the bucket's unit


Subject = tuple[str, str | None, str | None]  # tenant, app, key


class TokenBucket:
    """Token bucket that holds a minute's worth.

    It counts in integer parts of a token: per microsecond, as many parts flow in as the limit is
    tokens per minute. So the level is exact, however often it is read.
    """

    def __init__(self, per_minute: int) -> None:
        self._most, self._level, self._at = per_minute, per_minute * _PARTS, 0

    def _fill(self, at: int) -> None:
        self._level = min(self._most * _PARTS, self._level + (at - self._at) * self._most)
        self._at = at

    def change_limit(self, per_minute: int, at: int) -> None:
        """Change the limit; what was used stays used."""
        self._fill(at)
        self._level += (per_minute - self._most) * _PARTS
        self._most = per_minute

    def wait_us(self, amount: int, at: int) -> int:
        """Return the time until `amount` (at most a full bucket) is available."""
        self._fill(at)
        missing = min(amount, self._most) * _PARTS - self._level
        return max(0, -(-missing // self._most))

    def take_tokens(self, amount: int, at: int) -> None:
        """Take `amount`, even below 0; a negative amount is a refund."""
        self._fill(at)
        self._level = min(self._most * _PARTS, self._level - amount * _PARTS)

    def remaining_limit(self, at: int) -> RateLimit:
        reset_us = self.wait_us(self._most, at)
        return RateLimit(self._most, max(0, self._level // _PARTS), reset_us)


class Meter:
    """Usage meter of one quota."""

    def __init__(self, quota: Quota, idle_us: int, here: Sequence[WorkflowKey] = ()) -> None:
        """Start metering. `here` has the workflow of each call in flight."""
        self._idle_us = idle_us
        self._calls: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._workflows: WorkflowsAtOnce | None = None
        self._day = self._tokens_on_day = self._at_once = 0
        self.change_quota(quota, here, 0)

    def change_quota(self, quota: Quota, here: Sequence[WorkflowKey], at: int) -> None:
        """Set other limits. Usage so far still counts; what was not limited is counted from now on.

        `here` has the workflow of each call in flight.
        """
        self.quota = quota
        self._calls = _changed(self._calls, quota.calls_per_minute, at)
        self._tokens = _changed(self._tokens, quota.tokens_per_minute, at)
        self._at_once = len(here)
        if quota.workflows_at_once is None:
            self._workflows = None
        elif self._workflows is None:
            self._workflows = WorkflowsAtOnce(self._idle_us)
            for workflow in here:
                self._workflows.begin_call(workflow)

    def check(self, workflow: WorkflowKey, tokens: int, at: int) -> None:
        """Check whether a call with this many tokens stays within the quota.

        Raises:
            QuotaExceeded: it would exceed a limit; of several, the one that lasts longest is
                reported.
        """
        limits = sorted(self._waits(workflow, tokens, at))
        if limits and limits[-1][0] > 0:
            wait_us, what, limit = limits[-1]
            raise QuotaExceeded(self.quota, what, limit, max(1, math.ceil(wait_us / SECOND)))

    def _waits(self, workflow: WorkflowKey, tokens: int, at: int) -> Iterator[tuple[int, str, int]]:
        quota = self.quota
        if self._calls is not None and quota.calls_per_minute is not None:
            yield self._calls.wait_us(1, at), "calls per minute", quota.calls_per_minute
        if self._tokens is not None and quota.tokens_per_minute is not None:
            yield self._tokens.wait_us(tokens, at), "tokens per minute", quota.tokens_per_minute
        if (limit := quota.tokens_per_day) is not None:
            used = self._tokens_today(at)
            is_over = used > 0 and used + tokens > limit
            yield _day_left_us(at) if is_over else 0, "tokens per day", limit
        if (limit := quota.calls_at_once) is not None:
            yield SECOND if self._at_once >= limit else 0, "calls at once", limit
        if (limit := quota.workflows_at_once) is not None and self._workflows is not None:
            is_full = self._workflows.count_open(at) >= limit and workflow not in self._workflows
            yield SECOND if is_full else 0, "workflows at once", limit

    def remaining_limits(self, at: int) -> RateLimits:
        """Return what may still be used now."""
        requests = None if self._calls is None else self._calls.remaining_limit(at)
        tokens = None if self._tokens is None else self._tokens.remaining_limit(at)
        if (limit := self.quota.tokens_per_day) is not None:
            used = self._tokens_today(at)
            reset_us = _day_left_us(at) if used else 0
            tokens = scarcer(tokens, RateLimit(limit, max(0, limit - used), reset_us))
        return RateLimits(requests, tokens)

    def start_call(self, workflow: WorkflowKey, tokens: int, at: int) -> None:
        self._at_once += 1
        if self._workflows is not None:
            self._workflows.begin_call(workflow)
        if self._calls is not None:
            self._calls.take_tokens(1, at)
        self._take_tokens(tokens, at)

    def end_call(self, workflow: WorkflowKey, more_tokens: int, at: int, *, has_run: bool) -> None:
        """Record the end of a call.

        `more_tokens`: tokens it used beyond what was charged; negative if it used fewer.
        `has_run`: whether the call ran at all.
        """
        self._at_once -= 1
        if self._workflows is not None:
            self._workflows.end_call(workflow, at, has_run=has_run)
        self._take_tokens(more_tokens, at)

    def close_workflow(self, workflow: WorkflowKey) -> None:
        if self._workflows is not None:
            self._workflows.close_workflow(workflow)

    def _take_tokens(self, tokens: int, at: int) -> None:
        if self._tokens is not None:
            self._tokens.take_tokens(tokens, at)
        self._tokens_on_day = max(0, self._tokens_today(at) + tokens)
        self._day = at // _DAY_US

    def _tokens_today(self, at: int) -> int:
        return self._tokens_on_day if at // _DAY_US == self._day else 0


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
        """Start without quotas. `idle_us`: silence after which a workflow has ended."""
        self._idle_us = idle_us
        self._of_tenant: dict[str, _Meters] = {}
        self._taken: dict[str, tuple[tuple[Meter, int], ...]] = {}  # tokens charged, by call id

    def replace_quotas(self, quotas: Sequence[Quota], here: Sequence[Request], at: int) -> None:
        """Replace the quotas.

        Usage so far counts against the new quota of the same tenant, app or key. Calls at once are
        all requests that are `here`, in flight.
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
                meter.change_quota(quota, calls[subject], at)
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
            error.limits = self.remaining_limits(request, at)
            raise

    def remaining_limits(self, request: Request, at: int) -> RateLimits | None:
        """Return what the caller may still use; None if its rates are not limited."""
        left = RateLimits()
        for meter in self._of(request):
            more = meter.remaining_limits(at)
            left = RateLimits(
                scarcer(left.requests, more.requests), scarcer(left.tokens, more.tokens)
            )
        return left if left != RateLimits() else None

    def charge_call(self, request: Request, at: int) -> None:
        """Charge a request that was admitted."""
        if found := self._of(request):
            tokens, workflow = _tokens(request), workflow_key(request)
            self._taken[request.id] = tuple((meter, tokens) for meter in found)
            for meter in found:
                meter.start_call(workflow, tokens, at)

    def settle_call(self, request: Request, used_tokens: int, at: int) -> None:
        """Correct the charge of a call at its end.

        `used_tokens`: tokens of its prompt and answer as far as it ran; 0 if it never ran.
        """
        workflow, has_run = workflow_key(request), used_tokens > 0
        for meter, tokens in self._taken.pop(request.id, ()):
            meter.end_call(workflow, used_tokens - tokens, at, has_run=has_run)

    def close_workflow(self, workflow: WorkflowKey) -> None:
        meters = self._of_tenant.get(workflow[0])
        for meter in () if meters is None else meters.all:
            meter.close_workflow(workflow)


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens


def _subject(quota: Quota) -> Subject:
    return quota.tenant, quota.app, quota.key


def _subjects(request: Request) -> set[Subject]:
    """Return the subjects of all quotas that may apply to the request."""
    tenant = request.tenant
    return {(tenant, None, None), (tenant, request.app, None), (tenant, None, request.key)}


def _changed(bucket: TokenBucket | None, per_minute: int | None, at: int) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute)
    bucket.change_limit(per_minute, at)
    return bucket


def _day_left_us(at: int) -> int:
    return _DAY_US - at % _DAY_US


class WorkflowsAtOnce:
    """Open workflows of one quota. O(1) per fact, amortised.

    A workflow is open from the arrival of its first call until it has ended and has no calls in
    flight, or until it was silent for long. A workflow without any call that ran does not count: it
    was refused.
    """

    def __init__(self, idle_us: int) -> None:
        """Start without workflows; each ends after `idle_us` of silence."""
        self._idle_us = idle_us
        self._open: dict[WorkflowKey, _Open] = {}
        self._silent_since: OrderedDict[WorkflowKey, int] = OrderedDict()  # longest first

    def count_open(self, at: int) -> int:
        """Return the number of open workflows."""
        silent = self._silent_since
        while silent and (longest := next(iter(silent.items())))[1] <= at - self._idle_us:
            self._forget(longest[0])
        return len(self._open)

    def __contains__(self, workflow: WorkflowKey) -> bool:
        return workflow in self._open

    def begin_call(self, workflow: WorkflowKey) -> None:
        """Record an admitted call of a workflow."""
        self._silent_since.pop(workflow, None)
        one = self._open.setdefault(workflow, _Open())
        one.calls += 1
        one.is_over = False

    def end_call(self, workflow: WorkflowKey, at: int, *, has_run: bool) -> None:
        one = self._open[workflow]
        one.calls -= 1
        one.has_run |= has_run
        if one.calls:
            return
        if one.is_over or not one.has_run:
            self._forget(workflow)
        else:
            self._silent_since[workflow] = at

    def close_workflow(self, workflow: WorkflowKey) -> None:
        one = self._open.get(workflow)
        if one is not None:
            one.is_over = True
            if not one.calls:
                self._forget(workflow)

    def _forget(self, workflow: WorkflowKey) -> None:
        del self._open[workflow]
        self._silent_since.pop(workflow, None)


class _Open:
    calls: int = 0  # in flight
    has_run: bool = False
    is_over: bool = False
