"""What tenants and their apps may use at most."""

from datetime import UTC, datetime

import pytest

from kairos.events import Arrived, Cancelled, Finished
from kairos.model import SECOND
from kairos.scheduler.quotas import Quota, QuotaExceeded
from tests.support import build

NOON = int(datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()) * SECOND


class Pool:
    """A balancer with room for all."""

    def __init__(self, *quotas):
        self.balancer = build.balancer(build.instance("i", seqs=1_000), quotas=quotas)
        self.count = 0

    def ask(self, after_s=0.0, *, tenant="a", prompt=10, completion=10, **fields):
        """Returns the call's name; raises QuotaExceeded."""
        at = max(NOON, self.balancer.at) + int(after_s * SECOND)
        self.count += 1
        name = f"r{self.count}"
        request = build.request(
            name, at=at, tenant=tenant, prompt=prompt, completion=completion, **fields
        )
        self.balancer.handle(Arrived(request), at)
        return name

    def refused(self, *args, **fields):
        """After how many seconds to try again, and what is said."""
        with pytest.raises(QuotaExceeded) as raised:
            self.ask(*args, **fields)
        assert raised.value.status == 429
        return raised.value.retry_after_s, str(raised.value)

    def finish(self, name, **tokens):
        self.balancer.handle(Finished(name, **tokens), self.balancer.at)


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


def test_a_call_that_is_larger_than_a_minutes_worth_goes_when_all_of_it_is_there():
    pool = Pool(Quota("a", tokens_per_minute=600))
    pool.ask(prompt=5_000)
    after_s, _ = pool.refused(prompt=5_000)
    assert after_s > 400
    pool.ask(after_s, prompt=5_000)


def test_a_day_is_one_of_utc():
    pool = Pool(Quota("a", tokens_per_day=1_000))
    pool.finish(pool.ask(prompt=500, completion=500), prompt_tokens=500, completion_tokens=400)
    pool.ask(prompt=50, completion=50)
    assert pool.refused(prompt=50, completion=50)[0] == 12 * 3600
    pool.ask(12 * 3600, prompt=500, completion=500)


def test_calls_at_once_are_those_that_wait_or_run():
    pool = Pool(Quota("a", calls_at_once=2))
    first, _ = pool.ask(), pool.ask()
    assert pool.refused()[0] == 1
    pool.finish(first)
    pool.ask()


def test_of_several_limits_the_one_that_lasts_longest_is_told():
    pool = Pool(Quota("a", calls_per_minute=1, tokens_per_day=20))
    pool.ask()
    assert pool.refused()[0] == 12 * 3600


def test_one_that_is_refused_takes_nothing():
    pool = Pool(Quota("a", calls_per_minute=1))
    pool.ask()
    for _ in range(10):
        pool.refused()
    pool.ask(60)
