"""Quotas hold in any stretch of time, `Retry-After` is the truth, and a replay counts the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.events import Arrived, Finished, Record
from kairos.model import SECOND
from kairos.scheduler.meter import Meter, Quota, QuotaExceeded
from tests.support import build

LIMIT = 600
CALLS = st.lists(
    st.tuples(st.integers(0, 30 * SECOND), st.integers(1, 2 * LIMIT)), min_size=1, max_size=40
)


@given(CALLS)
def test_no_stretch_of_time_has_more_than_a_minutes_worth_and_what_flows_in(calls):
    meter, at, let_in = Meter(Quota("a", tokens_per_minute=LIMIT)), 10**15, []
    for after_us, tokens in calls:
        at += after_us
        try:
            meter.check(tokens, at)
        except QuotaExceeded:
            continue
        meter.begin(tokens, at)
        let_in.append((at, tokens))
    largest = max((tokens for _, tokens in let_in), default=0)
    for n, (begin, _) in enumerate(let_in):
        used = 0
        for end, tokens in let_in[n:]:
            used += tokens
            # One that is larger than a minute's worth goes when the bucket is full.
            flowed = LIMIT * (end - begin) / (60 * SECOND)
            assert used <= LIMIT + flowed + max(0, largest - LIMIT) + 1e-6


@given(CALLS)
def test_who_comes_back_when_it_is_told_to_is_let_in(calls):
    meter, at = Meter(Quota("a", calls_per_minute=4, tokens_per_minute=LIMIT)), 10**15
    for after_us, tokens in calls:
        at += after_us
        try:
            meter.check(tokens, at)
        except QuotaExceeded as refused:
            at += refused.retry_after_s * SECOND
            meter.check(tokens, at)
        meter.begin(tokens, at)


def test_a_replay_counts_the_same():
    def fresh():
        quota = Quota("a", calls_per_minute=5, calls_at_once=3)
        return build.balancer(build.instance("i"), quotas=(quota,))

    balancer, log = fresh(), []
    for n in range(5):
        events = [Arrived(build.request(f"r{n}", at=n, tenant="a"))]
        events += [Finished(f"r{n}")] if n % 2 else []
        log += [Record(n, each, tuple(balancer.handle(each, n))) for each in events]
    second = fresh()
    for record in log:
        second.replay(record)
    for each in (balancer, second):
        with pytest.raises(QuotaExceeded, match="calls per minute"):
            each.handle(Arrived(build.request("more", at=9, tenant="a")), 9)
