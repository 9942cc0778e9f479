"""Quotas hold in any stretch of time, `Retry-After` is the truth, and a replay counts the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Arrived, Cancelled, Finished, Quota, Record, WorkflowEnded
from kairos.core.errors import QuotaExceeded
from kairos.core.scheduler.quotas import Meter
from kairos.core.workflow_tracker import IDLE_US
from tests.support.simulate import build

LIMIT = 600
FLOW = ("a", "w")
CALLS = st.lists(
    st.tuples(st.integers(0, 30 * SECOND), st.integers(1, 2 * LIMIT)), min_size=1, max_size=40
)


@given(CALLS)
def test_no_stretch_of_time_has_more_than_a_minutes_worth_and_what_flows_in(calls):
    meter, at, let_in = Meter(Quota("a", tokens_per_minute=LIMIT), IDLE_US), 10**15, []
    for after_us, tokens in calls:
        at += after_us
        try:
            meter.check(FLOW, tokens, at)
        except QuotaExceeded:
            continue
        meter.start_call(FLOW, tokens, at)
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
    quota, at = Quota("a", calls_per_minute=4, tokens_per_minute=LIMIT), 10**15
    meter = Meter(quota, IDLE_US)
    for after_us, tokens in calls:
        at += after_us
        try:
            meter.check(FLOW, tokens, at)
        except QuotaExceeded as refused:
            at += refused.retry_after_s * SECOND
            meter.check(FLOW, tokens, at)
        meter.start_call(FLOW, tokens, at)


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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "finish", "cancel", "end", "wait"]), st.integers(0, 5)
    ),
    max_size=60,
)


@given(STEPS)
def test_no_more_workflows_are_open_at_once_than_may_be(steps):
    """Beside a model of what is open that looks at every workflow each time."""
    most, idle_us, at = 2, 10 * SECOND, 0
    quota = Quota("a", workflows_at_once=most)
    balancer = build.balancer(build.instance("i"), quotas=(quota,), idle_us=idle_us)
    running, heard_at, is_open = {}, {}, set()  # workflow by call; by workflow; workflows
    for n, (step, which) in enumerate(steps):
        flow = f"w{which}"
        silent = {each for each in is_open if each not in running.values()}
        is_open -= {each for each in silent if heard_at[each] <= at - idle_us}
        match step:
            case "ask":
                arrived = Arrived(build.request(f"r{n}", at=at, tenant="a", workflow_id=flow))
                if flow in is_open or len(is_open) < most:
                    balancer.handle(arrived, at)
                    running[f"r{n}"] = flow
                    is_open.add(flow)
                    heard_at[flow] = at
                else:
                    with pytest.raises(QuotaExceeded, match="workflows at once"):
                        balancer.handle(arrived, at)
            case "finish" | "cancel":
                if running:
                    name = sorted(running)[which % len(running)]
                    heard_at[running.pop(name)] = at
                    balancer.handle((Finished if step == "finish" else Cancelled)(name), at)
            case "end":
                if flow not in running.values():
                    balancer.handle(WorkflowEnded("a", flow), at)
                    is_open.discard(flow)
            case "wait":
                at += which * 2 * SECOND
