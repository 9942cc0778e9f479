"""Usage of one quota.

Limits per minute are token buckets that hold a minute's worth: this much may come at once, later as
much as flows in (Turner, "New directions in communications", IEEE Communications 24 (10), 1986).
Days are in UTC.
"""

import math
from collections.abc import Iterator, Sequence

from kairos.core.entitlements import Quota
from kairos.core.model import SECOND
from kairos.core.rate_limits import RateLimit, RateLimits, scarcer
from kairos.core.scheduler.quota_exceeded import QuotaExceeded
from kairos.core.scheduler.workflows_at_once import WorkflowsAtOnce
from kairos.core.workflow_tracker import WorkflowKey

_DAY_US = 86_400 * SECOND
_PARTS = 60 * SECOND  # parts per call or token, the bucket's unit


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

    def hold(self, per_minute: int, at: int) -> None:
        """Change the limit; what was used stays used."""
        self._fill(at)
        self._level += (per_minute - self._most) * _PARTS
        self._most = per_minute

    def wait_us(self, amount: int, at: int) -> int:
        """Return the time until `amount` (at most a full bucket) is available."""
        self._fill(at)
        missing = min(amount, self._most) * _PARTS - self._level
        return max(0, -(-missing // self._most))

    def take(self, amount: int, at: int) -> None:
        """Take `amount`, even below 0; a negative amount is a refund."""
        self._fill(at)
        self._level = min(self._most * _PARTS, self._level - amount * _PARTS)

    def left(self, at: int) -> RateLimit:
        reset_us = self.wait_us(self._most, at)
        return RateLimit(self._most, max(0, self._level // _PARTS), reset_us)


class Meter:
    """Usage meter of one quota."""

    def __init__(self, quota: Quota, idle_us: int, here: Sequence[WorkflowKey] = ()) -> None:
        """Start metering.

        Args:
            quota: the limits.
            idle_us: silence after which a workflow has ended.
            here: workflows of the calls in flight, one entry per call.
        """
        self._idle_us = idle_us
        self._calls: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._workflows: WorkflowsAtOnce | None = None
        self._day = self._tokens_on_day = self._at_once = 0
        self.change(quota, here, 0)

    def change(self, quota: Quota, here: Sequence[WorkflowKey], at: int) -> None:
        """Set other limits. Usage so far still counts; what was not limited is counted from now on.

        Args:
            quota: the new limits.
            here: workflows of the calls in flight, one entry per call.
            at: current time.
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
                self._workflows.arrived(workflow)

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
            is_full = self._workflows.open(at) >= limit and workflow not in self._workflows
            yield SECOND if is_full else 0, "workflows at once", limit

    def left(self, at: int) -> RateLimits:
        """Return what may still be used now."""
        requests = None if self._calls is None else self._calls.left(at)
        tokens = None if self._tokens is None else self._tokens.left(at)
        if (limit := self.quota.tokens_per_day) is not None:
            used = self._tokens_today(at)
            reset_us = _day_left_us(at) if used else 0
            tokens = scarcer(tokens, RateLimit(limit, max(0, limit - used), reset_us))
        return RateLimits(requests, tokens)

    def begin(self, workflow: WorkflowKey, tokens: int, at: int) -> None:
        self._at_once += 1
        if self._workflows is not None:
            self._workflows.arrived(workflow)
        if self._calls is not None:
            self._calls.take(1, at)
        self._take(tokens, at)

    def end(self, workflow: WorkflowKey, more_tokens: int, at: int, *, has_run: bool) -> None:
        """Record the end of a call.

        Args:
            workflow: the call's workflow.
            more_tokens: tokens it used beyond what was charged; negative if it used fewer.
            at: current time.
            has_run: whether the call ran at all.
        """
        self._at_once -= 1
        if self._workflows is not None:
            self._workflows.call_ended(workflow, at, has_run=has_run)
        self._take(more_tokens, at)

    def workflow_ended(self, workflow: WorkflowKey) -> None:
        if self._workflows is not None:
            self._workflows.ended(workflow)

    def _take(self, tokens: int, at: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens, at)
        self._tokens_on_day = max(0, self._tokens_today(at) + tokens)
        self._day = at // _DAY_US

    def _tokens_today(self, at: int) -> int:
        return self._tokens_on_day if at // _DAY_US == self._day else 0


def _changed(bucket: TokenBucket | None, per_minute: int | None, at: int) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute)
    bucket.hold(per_minute, at)
    return bucket


def _day_left_us(at: int) -> int:
    return _DAY_US - at % _DAY_US
