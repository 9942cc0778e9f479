"""What tenants and their apps may use at most."""

from datetime import UTC, datetime

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Cancelled,
    Entitlements,
    EntitlementsChanged,
    Finished,
    Quota,
    RateLimit,
    RateLimits,
    WorkflowEnded,
)
from kairos.core.errors import QuotaExceeded
from kairos.core.workflow_tracker import IDLE_US
from tests.support.simulate import build

NOON = int(datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()) * SECOND


class Pool:
    """A balancer with room for all."""

    def __init__(self, *quotas, seqs=1_000):
        self.balancer = build.balancer(build.instance("i", seqs=seqs), quotas=quotas)
        self.count = 0
        self.left = {}  # as its dispatch says, by name
        self.limits = None  # as the last refusal says

    def ask(self, after_s=0.0, *, tenant="a", prompt=10, completion=10, **fields):
        """Returns the call's name; raises QuotaExceeded."""
        at = max(NOON, self.balancer.at) + int(after_s * SECOND)
        self.count += 1
        name = f"r{self.count}"
        request = build.request(
            name, at=at, tenant=tenant, prompt=prompt, completion=completion, **fields
        )
        for dispatch in self.balancer.handle(Arrived(request), at):
            self.left[name] = dispatch.limits
        return name

    def refused(self, *args, **fields):
        """After how many seconds to try again, and what is said."""
        with pytest.raises(QuotaExceeded) as raised:
            self.ask(*args, **fields)
        assert raised.value.status == 429
        self.limits = raised.value.limits
        return raised.value.retry_after_s, str(raised.value)

    def finish(self, name, **tokens):
        self.balancer.handle(Finished(name, **tokens), self.balancer.at)

    def entitle(self, *quotas):
        changed = EntitlementsChanged(Entitlements(quotas=quotas))
        self.balancer.handle(changed, self.balancer.at)

    def end(self, *workflow, **how):
        self.balancer.handle(WorkflowEnded(*workflow, **how), self.balancer.at)


def test_a_minutes_worth_of_calls_may_come_at_once_and_then_as_many_as_flow_in():
    pool = Pool(Quota("a", calls_per_minute=60))
    for _ in range(60):
        pool.ask()
    after_s, said = pool.refused()
    assert (after_s, said) == (
        1,
        "tenant 'a': the quota of 60 calls per minute is used up; try again in 1 s",
    )
    pool.ask(1.0)
    pool.refused()
    pool.ask(tenant="b")


def test_an_app_has_a_quota_beside_that_of_its_tenant():
    pool = Pool(Quota("a", calls_per_minute=3), Quota("a", "chat", calls_per_minute=1))
    pool.ask(app="chat")
    _, said = pool.refused(app="chat")
    assert said.startswith("tenant 'a', app 'chat': the quota of 1 calls")
    pool.ask(app="other")
    pool.ask()
    assert pool.refused(app="other")[0] == 20


def test_tokens_are_taken_as_expected_and_put_right_at_the_end():
    pool = Pool(Quota("a", tokens_per_minute=600))
    first = pool.ask(prompt=100, completion=500)
    assert pool.refused(prompt=50, completion=50)[0] == 10
    pool.finish(first, prompt_tokens=100, completion_tokens=100)
    second = pool.ask(prompt=100, completion=300)
    pool.finish(second, prompt_tokens=100, completion_tokens=900)
    # 600 too many were used: these flow in first.
    assert pool.refused(prompt=0, completion=1)[0] == 61


def test_what_never_ran_has_used_nothing():
    pool = Pool(Quota("a", tokens_per_minute=600))
    pool.balancer.handle(Cancelled(pool.ask(prompt=0, completion=600)), pool.balancer.at)
    pool.ask(prompt=0, completion=600)


def test_a_day_is_one_of_utc():
    pool = Pool(Quota("a", tokens_per_day=1_000))
    pool.finish(pool.ask(prompt=500, completion=500), prompt_tokens=500, completion_tokens=400)
    pool.ask(prompt=50, completion=50)
    assert pool.refused(prompt=50, completion=50)[0] == 12 * 3600
    pool.ask(12 * 3600, prompt=500, completion=500)


def test_a_dispatch_says_what_is_left_with_its_call_taken():
    pool = Pool(Quota("a", calls_per_minute=60, tokens_per_minute=600))
    name = pool.ask(prompt=100, completion=50)
    assert pool.left[name] == RateLimits(
        RateLimit(60, 59, 1 * SECOND), RateLimit(600, 450, 15 * SECOND)
    )
    pool.finish(name, prompt_tokens=100, completion_tokens=0)
    name = pool.ask(0.5, prompt=1, completion=0)
    assert pool.left[name] == RateLimits(
        RateLimit(60, 58, SECOND * 3 // 2), RateLimit(600, 504, SECOND * 96 // 10)
    )


def test_of_several_quotas_that_hold_the_scarcest_is_said():
    pool = Pool(
        Quota("a", calls_per_minute=60, tokens_per_day=1_000),
        Quota("a", "chat", calls_per_minute=2, tokens_per_minute=30_000),
    )
    half_a_day_us = 12 * 3_600 * SECOND
    name = pool.ask(app="chat", prompt=10, completion=10)
    assert pool.left[name] == RateLimits(
        RateLimit(2, 1, 30 * SECOND), RateLimit(1_000, 980, half_a_day_us)
    )
    name = pool.ask()
    assert pool.left[name].requests == RateLimit(60, 58, 2 * SECOND)


def test_what_was_used_beyond_a_limit_leaves_nothing_and_not_less():
    pool = Pool(Quota("a", tokens_per_minute=600, tokens_per_day=700))
    name = pool.ask(prompt=100, completion=0)
    pool.finish(name, prompt_tokens=100, completion_tokens=800)
    pool.refused(30)
    assert pool.limits.tokens.remaining == 0


def test_workflows_at_once_are_those_that_have_begun_and_not_ended():
    pool = Pool(Quota("a", workflows_at_once=2))
    first, _ = pool.ask(workflow_id="w1"), pool.ask(workflow_id="w2")
    after_s, said = pool.refused(workflow_id="w3")
    assert (after_s, "2 workflows at once" in said) == (1, True)
    pool.finish(first)
    pool.refused(workflow_id="w3")  # between two calls a workflow is open still
    again = pool.ask(workflow_id="w1")
    pool.end("a", "w1")
    pool.refused(workflow_id="w3")  # one of its calls runs
    pool.finish(again)
    pool.ask(workflow_id="w3")
    pool.ask(tenant="b", workflow_id="w4")


def test_a_workflow_of_which_nothing_is_heard_for_long_makes_room():
    pool = Pool(Quota("a", workflows_at_once=1))
    pool.finish(pool.ask(workflow_id="w1"))
    pool.refused(IDLE_US / SECOND - 1, workflow_id="w2")
    pool.ask(IDLE_US / SECOND, workflow_id="w2")


def test_a_workflow_of_which_no_call_ran_takes_no_place():
    pool = Pool(Quota("a", workflows_at_once=1), seqs=1)
    pool.ask(tenant="b")
    name = pool.ask(workflow_id="w1")  # it waits
    pool.refused(workflow_id="w2")
    pool.balancer.handle(Cancelled(name), pool.balancer.at)
    pool.ask(workflow_id="w2")


def test_a_workflow_that_is_cancelled_makes_room_when_its_calls_are_gone():
    pool = Pool(Quota("a", workflows_at_once=1))
    name = pool.ask(workflow_id="w1")
    pool.end("a", "w1", cancelled=True)
    pool.balancer.handle(Cancelled(name), pool.balancer.at)
    pool.ask(workflow_id="w2")


def test_a_workflow_whose_call_takes_longer_than_silence_may_stays_open():
    pool = Pool(Quota("a", workflows_at_once=1))
    pool.finish(pool.ask(workflow_id="w1"))
    long = pool.ask(workflow_id="w1")
    pool.refused(2 * IDLE_US / SECOND, workflow_id="w2")
    pool.finish(long)
    pool.refused(workflow_id="w2")


def test_other_limits_of_the_same_go_on_from_what_was_used():
    pool = Pool(Quota("a", calls_per_minute=10, tokens_per_day=100))
    for _ in range(4):
        pool.ask()
    pool.entitle(Quota("a", calls_per_minute=5, tokens_per_day=1_000))
    pool.ask()
    assert pool.refused()[0] == 12
    pool.entitle(Quota("a", calls_per_minute=6, tokens_per_day=120))
    pool.ask()
    assert "tokens per day" in pool.refused()[1]


def test_a_quota_that_is_new_counts_the_calls_that_are_here_but_not_what_they_took():
    pool = Pool()
    first, _ = pool.ask(workflow_id="w1"), pool.ask(workflow_id="w2")
    pool.entitle(Quota("a", calls_at_once=2, calls_per_minute=1))
    assert "calls at once" in pool.refused()[1]
    pool.finish(first, prompt_tokens=5, completion_tokens=5)
    pool.ask()
    pool.entitle(Quota("a", workflows_at_once=2))
    pool.refused(workflow_id="w3")
    pool.entitle()
    pool.ask(workflow_id="w3")
